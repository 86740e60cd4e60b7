#!/usr/bin/env python3
"""Writes overview.json and fleet.json: Grafana dashboards, from the panels listed below.

    dashboards/generate.py           writes the files
    dashboards/generate.py --check   fails if they are not what it would write

A panel is a question, the expressions that answer it, and a sentence that says how to read the answer. Grafana's JSON holds
sixty lines around each; written by hand it would differ from panel to panel and no review would see it. The data source
is a variable that defaults to the provisioned one (uid `prometheus`), so the files can be imported elsewhere as they are.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Outcomes of requests that failed through no fault of the client.
FAILED = "no_capacity|queue_full|overloaded|deadline_exceeded|upstream_error|draining|internal_error|panic"
# States in which a replica gets new work.
SERVING = "ready|suspect|probation"
# Ends of attempts that say nothing against their replica.
NOT_ITS_FAULT = "ok|client_gone|panic|cancelled|hedge_lost|given_back|local|request_fault|context_exceeded"

OF_MODEL = 'model=~"$model"'
OF_REQUEST = 'model=~"$model",class=~"$class"'
OF_REPLICA = 'replica=~"$replica"'


def target(expr, legend="", instant=False, table=False):
    return {
        "datasource": DATASOURCE, "editorMode": "code", "expr": expr, "legendFormat": legend or "__auto",
        "instant": instant, "range": not instant, **({"format": "table"} if table else {}),
    }


def panel(kind, title, targets, read, unit="short", width=8, height=8, options=None, stack=False, decimals=None, steps=None,
          floor=None, extra=None):
    """One panel. `targets`: (expression, legend) pairs. `read`: how to read the answer. `steps`: (value, colour) thresholds."""
    instant = kind in ("stat", "bargauge", "table")
    custom = {}
    if kind == "timeseries":
        custom = {"fillOpacity": 30 if stack else 5, "lineWidth": 1, "showPoints": "never", "spanNulls": False,
                  "stacking": {"mode": "normal" if stack else "none", "group": "A"}}
    defaults = {
        "unit": unit, "custom": custom,
        **({"decimals": decimals} if decimals is not None else {}), **({"min": floor} if floor is not None else {}),
        "thresholds": {"mode": "absolute", "steps": [
            {"color": "green" if steps else "text", "value": None}, *({"color": c, "value": v} for v, c in steps or ())]},
        "color": {"mode": "thresholds" if instant else "palette-classic"},
    }
    shown = {
        "timeseries": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                       "tooltip": {"mode": "multi", "sort": "desc"}},
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
                 "graphMode": "none", "textMode": "auto", "justifyMode": "auto", "orientation": "auto"},
        "bargauge": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "displayMode": "basic",
                     "orientation": "horizontal", "showUnfilled": True, "valueMode": "color"},
        "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
    }[kind]
    return {
        "type": kind, "title": title, "description": read, "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": {**shown, **(options or {})},
        "targets": [{**target(e, l, instant, kind == "table"), "refId": chr(ord("A") + i)} for i, (e, l) in enumerate(targets)],
        **(extra or {}),
    }


def stat(title, expr, read, unit="short", steps=None, width=4, **more):
    return panel("stat", title, [(expr, "")], read, unit, width, 4, steps=steps, **more)


def lines(title, targets, read, unit="short", **more):
    return panel("timeseries", title, targets, read, unit, **{"floor": 0, **more})


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"w": 24, "h": 1, "x": 0, "y": 0}, "panels": []}


def quantile(q, metric, by, of):
    return f"histogram_quantile({q}, sum by (le, {by}) (rate({metric}_bucket{{{of}}}[$__rate_interval])))"


def quantiles(metric, by, of, qs=(0.5, 0.95)):
    return [(quantile(q, metric, by, of), f"{{{{{by}}}}} p{q * 100:g}") for q in qs]


def overview():
    failing = f'sum(rate(huntgroup_requests_total{{{OF_REQUEST},outcome=~"{FAILED}"}}[$__rate_interval]))'
    every = f"sum(rate(huntgroup_requests_total{{{OF_REQUEST}}}[$__rate_interval]))"
    return [
        row("Now"),
        stat("Which replicas take work?", f'sum(huntgroup_replicas{{{OF_MODEL},state=~"{SERVING}"}})',
             "Replicas in states that get new work. 0: nobody can be answered.", steps=[(0, "red"), (1, "green")]),
        stat("How many slots are free?", 'sum(huntgroup_replica_slots{state="free"})',
             "Requests that could start at once. 0 for long: the pool is too small for its load.", steps=[(0, "orange"), (1, "green")]),
        stat("How many requests are in flight?", "sum(huntgroup_requests_in_flight)", "From their head to the end of their answer."),
        stat("How many requests wait?", f"sum(huntgroup_queue_depth{{{OF_REQUEST}}})", "Requests without a slot yet.",
             steps=[(0, "green"), (50, "orange"), (500, "red")]),
        stat("How long does the oldest wait?", 'max(huntgroup_requests_in_flight_age_seconds{phase="queued"})',
             "Interactive requests are refused after 2 minutes, standard ones after 10; batch work may wait for hours.", "s"),
        stat("What share of requests fails?", f"({failing} or vector(0)) / ({every} > 0)",
             "Through no fault of the client: refused for load, lost, past their deadline. Empty without requests.",
             "percentunit", steps=[(0.01, "orange"), (0.05, "red")], decimals=2),

        row("Traffic"),
        lines("How do requests end?", [(f"sum by (outcome) (rate(huntgroup_requests_total{{{OF_REQUEST}}}[$__rate_interval]))", "{{outcome}}")],
              "Requests per second by outcome. client_gone: the client left first, often because its own timeout is shorter than a phone's answer.",
              "reqps", stack=True),
        lines("How many answers does each class get?",
              [(f'sum by (class) (rate(huntgroup_requests_total{{{OF_REQUEST},outcome="ok"}}[$__rate_interval]))', "{{class}}")],
              "Whole answers per second.", "reqps", stack=True),
        lines("Which routes are used?", [(f"sum by (route) (rate(huntgroup_requests_total{{{OF_REQUEST}}}[$__rate_interval]))", "{{route}}")],
              "Requests per second by route.", "reqps", stack=True),
        lines("How many tokens are read and written?",
              [(f"sum by (direction) (rate(huntgroup_tokens_total{{{OF_MODEL}}}[$__rate_interval]))", "{{direction}}")],
              "Tokens per second over all replicas, as the replicas count them.", "short"),
        lines("How much of the prompts did phones have in their cache?",
              [(f"sum by (model) (rate(huntgroup_cached_prompt_tokens_total{{{OF_MODEL}}}[$__rate_interval])) / "
                f'(sum by (model) (rate(huntgroup_tokens_total{{{OF_MODEL},direction="prompt"}}[$__rate_interval])) > 0)', "{{model}}")],
              "Share of prompt tokens that were not read again. Conversations and long common beginnings should show much of it: "
              "the scheduler sends them where they are warm.", "percentunit"),
        lines("Are more and more requests in flight?", [("sum(huntgroup_requests_in_flight)", "in flight")],
              "If this grows while answers per second stay, the pool is full."),

        row("How long clients wait"),
        lines("How long until the first token, by class?", quantiles("huntgroup_time_to_first_token_seconds", "class", OF_REQUEST),
              "TTFT with the wait for a slot. Half of the requests see less than p50, one in twenty more than p95. Streams only.", "s"),
        lines("How long until the whole answer, by class?", quantiles("huntgroup_request_duration_seconds", "class", OF_REQUEST),
              "From the head of the request to the last byte of a whole answer.", "s"),
        lines("How long do requests wait for a slot, by class?", quantiles("huntgroup_queue_wait_seconds", "class", OF_REQUEST),
              "All waits of a request, those after a failed attempt included. High here and low in the next panel: add replicas.", "s"),
        lines("How long does one token take, by model?", quantiles("huntgroup_time_per_output_token_seconds", "model", OF_REQUEST),
              "Mean pace of an answer after its first token. Rising alone: phones run hot or share slots.", "s"),
        lines("How much time does the gateway itself take?",
              [(f"histogram_quantile({q}, sum by (le) (rate(huntgroup_gateway_overhead_seconds_bucket{{{OF_REQUEST}}}[$__rate_interval])))",
                f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
              "What neither the queue nor a replica took. Clients that send bodies slowly count here.", "s"),
        lines("How old is the oldest request?", [("max by (phase) (huntgroup_requests_in_flight_age_seconds)", "{{phase}}")],
              "A line that climbs without end is a request that never finishes.", "s"),

        row("Queue, refusals, failed attempts"),
        lines("Who waits, by class?", [(f"sum by (class) (huntgroup_queue_depth{{{OF_REQUEST}}})", "{{class}}")],
              "Waiting requests. Batch may pile up; interactive should not.", stack=True),
        lines("What for, by model?", [(f"sum by (model) (huntgroup_queue_depth{{{OF_REQUEST}}})", "{{model}}")],
              "The model whose line is high needs replicas.", stack=True),
        lines("Why are requests refused?", [("sum by (reason) (rate(huntgroup_shed_total[$__rate_interval]))", "{{reason}}")],
              "Refusals per second. no_capacity: no replica of the model came up in time; queue_full, overloaded: more work than slots.", "reqps", stack=True),
        lines("Why do attempts move to another replica?",
              [("sum by (phase, reason) (rate(huntgroup_failovers_total[$__rate_interval]))", "{{phase}}: {{reason}}")],
              "Failovers per second, unseen by clients. connect: nobody there; head: no answer began; body: it broke before content.", "ops", stack=True),
        lines("Are second copies worth it?", [("sum by (outcome) (rate(huntgroup_hedges_total[$__rate_interval]))", "{{outcome}}")],
              "Second copies of late requests per second. Mostly lost: they cost phones and help nobody, lower scheduler.hedge_share.", "ops", stack=True),
        lines("How do attempts end?", [("sum by (outcome) (rate(huntgroup_attempts_total[$__rate_interval]))", "{{outcome}}")],
              "Attempts per second over all replicas.", "ops", stack=True),
        lines("How long would a new request wait?",
              [(f"max by (class) (huntgroup_estimated_wait_seconds{{{OF_REQUEST}}})", "{{class}}")],
              "The scheduler's estimate for a request that arrived now; the model where it is longest. Clients are told no other.", "s"),
        lines("Why do requests wait?",
              [('sum by (decision) (rate(huntgroup_decisions_total{decision=~"waited|waited_warm|reserved"}[$__rate_interval]))', "{{decision}}")],
              "How often a second a request was left waiting beside a free slot, on purpose. waited: a better phone is free soon; waited_warm: one that holds "
              "the beginning of the prompt; reserved: the slot is kept for urgent ones. Nothing here while requests wait: all slots are busy.", "ops", stack=True),
        lines("How do requests get their slots?",
              [('sum by (decision) (rate(huntgroup_decisions_total{decision!~"waited|waited_warm|reserved|hopeless"}[$__rate_interval]))', "{{decision}}")],
              "Decisions per second. placed: on arrival; taken: after a wait; hedged: a second copy; gave_back: a batch request made room.", "ops", stack=True),
        lines("How many slots work for nothing?", [("sum by (reason) (rate(huntgroup_wasted_slot_seconds_total[$__rate_interval]))", "{{reason}}")],
              "Slot seconds per second, so: slots on average, spent on attempts without a whole answer. client_gone is the clients' doing; "
              "hedge_lost and given_back are the price of second copies and of room for urgent requests.", stack=True),
        lines("What is wasted?",
              [("sum by (reason) (rate(huntgroup_wasted_slot_seconds_total[$__rate_interval])) / on () group_left () "
                '(sum(avg_over_time(huntgroup_replica_slots{state="busy"}[$__rate_interval])) > 0)', "{{reason}}")],
              "The same as a share of the slots that work. Above 0.1: see the runbook.", "percentunit", stack=True),

        row("The gateway process"),
        panel("table", "What runs, since when?", [("huntgroup_build_info * on (instance) group_left () (time() - process_start_time_seconds)", "")],
              "Version, and seconds since the start.", "s", 8, 4,
              extra={"transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True, "job": True, "__name__": True}}}]}),
        stat("How many requests ended in a panic?", "sum(increase(huntgroup_panics_total[24h]))", "In the last 24 hours. Each is a defect.",
             steps=[(1, "red")], decimals=0),
        lines("How much memory?", [("process_resident_memory_bytes{job=\"huntgroup\"}", "{{instance}}")], "Resident memory.", "bytes", width=4),
        lines("How much CPU?", [("rate(process_cpu_seconds_total{job=\"huntgroup\"}[$__rate_interval])", "{{instance}}")], "Cores in use.", width=4),
        lines("How near is the descriptor limit?",
              [('process_open_fds{job="huntgroup"} / process_max_fds{job="huntgroup"}', "{{instance}}")],
              "Each client and each attempt holds one.", "percentunit", width=4),
    ]


def fleet():
    top = "topk(10, {})".format
    failed = f'sum by (replica) (rate(huntgroup_attempts_total{{{OF_REPLICA},outcome!~"{NOT_ITS_FAULT}"}}[15m]))'
    tried = f"sum by (replica) (rate(huntgroup_attempts_total{{{OF_REPLICA}}}[15m]))"
    columns = {
        "busy": f'sum by (replica) (huntgroup_replica_slots{{{OF_REPLICA},state="busy"}})',
        "free": f'sum by (replica) (huntgroup_replica_slots{{{OF_REPLICA},state="free"}})',
        "reads, tokens/s": f"max by (replica) (huntgroup_replica_prefill_tokens_per_second{{{OF_REPLICA}}})",
        "writes, tokens/s": f"max by (replica) (huntgroup_replica_decode_tokens_per_second{{{OF_REPLICA}}})",
        "attempts, 1 h": f"sum by (replica) (increase(huntgroup_attempts_total{{{OF_REPLICA}}}[1h]))",
        "failed, 1 h": f'sum by (replica) (increase(huntgroup_attempts_total{{{OF_REPLICA},outcome!~"{NOT_ITS_FAULT}"}}[1h]))',
        "state changes, 1 h": f"sum by (replica) (increase(huntgroup_replica_state_changes_total{{{OF_REPLICA}}}[1h]))",
        "seconds to expiry": f"min by (replica) (huntgroup_replica_seconds_to_expiry{{{OF_REPLICA}}})",
    }
    names = {f"Value #{chr(ord('A') + i)}": name for i, name in enumerate(columns)}
    return [
        row("The pool"),
        lines("In which state are the replicas?", [(f"sum by (state) (huntgroup_replicas{{{OF_MODEL}}})", "{{state}}")],
              "ready, suspect and probation get work; out waits for its penalty; misconfigured waits for an operator.", stack=True, width=12),
        lines("How many replicas take work, by model?",
              [(f'sum by (model) (huntgroup_replicas{{{OF_MODEL},state=~"{SERVING}"}})', "{{model}}")],
              "A replica that serves several models counts for each.", width=12),
        lines("How many slots are busy, how many free?", [("sum by (state) (huntgroup_replica_slots)", "{{state}}")],
              "Free slots of replicas that take work. All busy for long: requests queue.", stack=True, width=12),
        lines("How full is the pool?", [('sum(huntgroup_replica_slots{state="busy"}) / (sum(huntgroup_replica_slots) > 0)', "busy share")],
              "Share of usable slots that work. Above 0.8 interactive requests begin to wait.", "percentunit", width=12),

        row("Health"),
        lines("Where do replicas go, and why?",
              [("sum by (to, reason) (rate(huntgroup_replica_state_changes_total[$__rate_interval])) * 60", "to {{to}}: {{reason}}")],
              "State changes per minute over the pool. relay_down for many at once: the relay, not the phones.", stack=True),
        panel("bargauge", "Which replicas flap?", [(top(f"sum by (replica) (increase(huntgroup_replica_state_changes_total{{{OF_REPLICA}}}[1h]))"), "{{replica}}")],
              "State changes in the last hour; the ten highest. More than a dozen: drain it and look at the phone.", decimals=0, floor=0),
        panel("bargauge", "Which replicas fail their attempts?", [(top(f"({failed} or {tried} * 0) / ({tried} > 0)"), "{{replica}}")],
              "Share of attempts of the last 15 minutes that failed through the replica's fault; the ten highest.", "percentunit", decimals=2, floor=0),
        lines("How do attempts end?", [(f"sum by (outcome) (rate(huntgroup_attempts_total{{{OF_REPLICA}}}[$__rate_interval]))", "{{outcome}}")],
              "Attempts per second on the chosen replicas.", "ops", stack=True),
        lines("Why do attempts move to another replica?", [("sum by (reason) (rate(huntgroup_failovers_total[$__rate_interval]))", "{{reason}}")],
              "Failovers per second over the pool.", "ops", stack=True),
        panel("bargauge", "Whose deployment ends next?", [(f"bottomk(10, huntgroup_replica_seconds_to_expiry{{{OF_REPLICA}}})", "{{replica}}")],
              "Of the replicas with a known end. Nothing replaces a phone by itself.", "s", steps=[(3600, "text")]),

        row("Speed and load, replica by replica"),
        lines("How fast do replicas read prompts?", [(top(f"huntgroup_replica_prefill_tokens_per_second{{{OF_REPLICA}}}"), "{{replica}}")],
              "Prompt tokens per second, from traffic; the ten fastest. Falling: the phone runs hot, or prompts grew longer.", width=8),
        lines("How fast do replicas write?", [(top(f"huntgroup_replica_decode_tokens_per_second{{{OF_REPLICA}}}"), "{{replica}}")],
              "Tokens per second of one answer, from traffic; the ten fastest.", width=8),
        panel("bargauge", "Which replicas write slowest?", [(f"bottomk(10, huntgroup_replica_decode_tokens_per_second{{{OF_REPLICA}}})", "{{replica}}")],
              "The ten slowest. One far below its equals is throttled or shared.", floor=0),
        panel("table", "What does each replica do?", [(expr, name) for name, expr in columns.items()],
              "One row a replica. Sort by a column; an empty cell has not been measured.", "short", 24, 12, decimals=1,
              extra={"transformations": [
                  {"id": "merge", "options": {}},
                  {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}}]}),
    ]


def variable(name, label, query):
    return {
        "type": "query", "name": name, "label": label, "datasource": DATASOURCE, "refresh": 2, "sort": 1, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]},
        "definition": query, "query": {"qryType": 1, "query": query, "refId": "Variable"},
    }


VARIABLES = {
    "model": variable("model", "Model", "label_values(huntgroup_queue_depth, model)"),
    "class": variable("class", "Class", "label_values(huntgroup_queue_depth, class)"),
    "replica": variable("replica", "Replica", "label_values(huntgroup_replica_slots, replica)"),
}


def laid_out(panels):
    """Places panels from left to right, row by row, and numbers them."""
    x = y = tallest = 0
    for number, one in enumerate(panels, 1):
        place = one["gridPos"]
        if x + place["w"] > 24:
            x, y, tallest = 0, y + tallest, 0
        place.update(x=x, y=y)
        one["id"] = number
        x, tallest = x + place["w"], max(tallest, place["h"])
    return panels


def dashboard(uid, title, description, panels, variables, other):
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0,
              "current": {"text": "Prometheus", "value": "prometheus"}, "options": [], "refresh": 1, "regex": ""}
    return {
        "uid": uid, "title": title, "description": description, "tags": ["huntgroup"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "annotations": {"list": []},
        "links": [{"type": "link", "title": other[1], "url": f"/d/{other[0]}", "icon": "dashboard", "keepTime": True}],
        "templating": {"list": [source, *(VARIABLES[name] for name in variables)]},
        "panels": laid_out(panels),
    }


def files():
    return {
        "overview.json": dashboard("huntgroup-overview", "Huntgroup: overview", "Whether clients are served, and what keeps them waiting.",
                                   overview(), ["model", "class"], ("huntgroup-fleet", "Fleet")),
        "fleet.json": dashboard("huntgroup-fleet", "Huntgroup: fleet", "The replicas: states, slots, speeds, failures.",
                                fleet(), ["model", "replica"], ("huntgroup-overview", "Overview")),
    }


def main(arguments):
    stale = []
    for name, content in files().items():
        text = json.dumps(content, indent=1) + "\n"
        path = HERE / name
        if arguments == ["--check"]:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        sys.exit(f"not what generate.py writes: {', '.join(stale)}; run dashboards/generate.py")


if __name__ == "__main__":
    main(sys.argv[1:])
