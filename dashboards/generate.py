#!/usr/bin/env python3
"""Writes overview.json, fleet.json, batches.json, tenants.json and cost.json: Grafana dashboards, from the panels listed below.

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
OF_TENANT = 'tenant=~"$tenant"'
ACU = "suffix: ACU"


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


def table(title, columns, read, **more):
    """One row for each value of the label that all columns keep; a column is its name and its expression."""
    names = {f"Value #{chr(ord('A') + i)}": name for i, name in enumerate(columns)}
    organize = {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}}
    return panel("table", title, [(expr, "") for expr in columns.values()], read, width=24,
                 extra={"transformations": [{"id": "merge", "options": {}}, organize]}, **more)


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
        stat("How many replicas take work?", f'sum(huntgroup_replicas{{{OF_MODEL},state=~"{SERVING}"}})',
             "Replicas in states that get new work; one that serves several models counts for each. 0: nobody can be answered.", steps=[(0, "red"), (1, "green")]),
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
        lines("Which models are waited for?", [(f"sum by (model) (huntgroup_queue_depth{{{OF_REQUEST}}})", "{{model}}")],
              "The model whose line is high needs replicas.", stack=True),
        lines("Why are requests refused?", [("sum by (reason) (rate(huntgroup_shed_total[$__rate_interval]))", "{{reason}}")],
              "Refusals per second. no_capacity: no replica of the model came up in time; queue_full, overloaded: more work than slots.", "reqps", stack=True),
        lines("Why do attempts move to another replica?",
              [("sum by (phase, reason) (rate(huntgroup_failovers_total[$__rate_interval]))", "{{phase}}: {{reason}}")],
              "Failovers per second, unseen by clients. connect: nobody there; head: no answer began; body: it broke before content.", "ops", stack=True),
        lines("Are second copies worth it?", [("sum by (outcome) (rate(huntgroup_hedges_total[$__rate_interval]))", "{{outcome}}")],
              "Second copies of late requests per second. Mostly lost: they cost phones and help nobody, lower scheduler.hedge_share.", "ops", stack=True),
        lines("What becomes of answers that break off?", [("sum by (outcome) (rate(huntgroup_continuations_total[$__rate_interval]))", "{{outcome}}")],
              "Answers per second whose replica went away in the middle. same_group, other_group, resumed: carried on, their clients saw one answer; "
              "failed, impossible_…: lost.", "ops", stack=True),
        lines("How do attempts end?", [("sum by (outcome) (rate(huntgroup_attempts_total[$__rate_interval]))", "{{outcome}}")],
              "Attempts per second over all replicas.", "ops", stack=True),
        lines("How long would a new request wait?",
              [(f"max by (class) (huntgroup_estimated_wait_seconds{{{OF_REQUEST}}})", "{{class}}")],
              "The scheduler's estimate for a request that arrived now; the model where it is longest. Clients are told no other.", "s"),
        lines("How many phones should there be?",
              [(f"max by (model) (huntgroup_replicas_wanted{{{OF_MODEL}}})", "{{model}}: wanted"),
               (f'sum by (model) (huntgroup_replicas{{{OF_MODEL},state!~"draining|misconfigured"}})', "{{model}}: there")],
              "For what [capacity] promises; no line where nothing can be said. Why: huntgroup advice."),
        lines("Which share of the requests is in time?",
              [(f"min by (model, class) (huntgroup_objective_attained{{{OF_REQUEST}}})", "{{model}}, {{class}}")],
              "First tokens within capacity.interactive_ttft and standard_ttft, over capacity.window.", "percentunit"),
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
        lines("What share of the work is wasted?",
              [("sum by (reason) (rate(huntgroup_wasted_slot_seconds_total[$__rate_interval])) / on () group_left () "
                '(sum(avg_over_time(huntgroup_replica_slots{state="busy"}[$__rate_interval])) > 0)', "{{reason}}")],
              "The same as a share of the slots that work. Above 0.1: see the runbook.", "percentunit", stack=True),

        row("The gateway process"),
        panel("table", "What runs, since when?", [("huntgroup_build_info * on (instance) group_left () (time() - process_start_time_seconds)", "")],
              "Version, and seconds since the start.", "s", 8, 4,
              extra={"transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True, "job": True, "__name__": True}}}]}),
        stat("How many requests ended in a panic?", "sum(increase(huntgroup_panics_total[24h]))", "In the last 24 hours. Each is a defect.",
             steps=[(1, "red")], decimals=0),
        lines("Do the databases take what they should keep?", [("sum by (store) (increase(huntgroup_store_failures_total[$__rate_interval]))", "{{store}}")],
              "Calls that a database failed. state: replicas, keys, the audit trail; batches: files and batches. Anything but 0: see the runbook.",
              width=4, decimals=0),
        lines("How much memory?", [("process_resident_memory_bytes{job=\"huntgroup\"}", "{{instance}}")], "Resident memory.", "bytes", width=4),
        lines("How much CPU?", [("rate(process_cpu_seconds_total{job=\"huntgroup\"}[$__rate_interval])", "{{instance}}")], "Cores in use.", width=4),
        lines("How near is the descriptor limit?",
              [('process_open_fds{job="huntgroup"} / process_max_fds{job="huntgroup"}', "{{instance}}")],
              "Each client and each attempt holds one.", "percentunit", width=4),

        row("Clients that come back"),
        lines("How many clients come back to their answer?", [("sum by (state) (rate(huntgroup_joined_requests_total[$__rate_interval]))", "{{state}}")],
              "Requests per second that joined an earlier one, still running or finished. Each of them would have begun the work anew.", "reqps", stack=True),
        lines("How many clients try again?", [("sum(rate(huntgroup_client_retries_total[$__rate_interval]))", "retries")],
              "Requests per second that say they are a retry, whatever became of the first. More than a few: time-outs of clients are "
              "shorter than answers take.", "reqps", stack=True),
        lines("How much do answers take that can be joined?", [("sum by (instance) (huntgroup_kept_answer_bytes)", "{{instance}}")],
              "Of running requests, and kept of finished ones. At idempotency.max_bytes the ones kept longest go.", "bytes"),
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
    return [
        row("The pool"),
        lines("In which state are the replicas?", [(f"sum by (state) (huntgroup_replicas{{{OF_MODEL}}})", "{{state}}")],
              "ready, suspect and probation get work; quarantine has yet to show what it can do; out waits for its penalty; misconfigured waits for an operator.", stack=True, width=12),
        lines("How many replicas take work, by model?",
              [(f'sum by (model) (huntgroup_replicas{{{OF_MODEL},state=~"{SERVING}"}})', "{{model}}")],
              "A replica that serves several models counts for each.", width=12),
        lines("How many slots are busy, how many free?", [("sum by (state) (huntgroup_replica_slots)", "{{state}}")],
              "Free slots of replicas that take work. All busy for long: requests queue.", stack=True, width=12),
        lines("How full is the pool?", [('1 - sum(huntgroup_replica_slots{state="free"}) / (sum(huntgroup_replica_slots) > 0)', "busy share")],
              "Share of usable slots that work, for whomever. Above 0.8 interactive requests begin to wait.", "percentunit", width=12),

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
        lines("Which relays are down?", [("max by (relay) (huntgroup_relay_down)", "{{relay}}")],
              "1 while all replicas behind a relay fail to connect: it is the relay, not the phones. They are held, and asked again by themselves.", decimals=0),
        lines("What do phones that register say?", [("sum by (outcome) (rate(huntgroup_registrations_total[$__rate_interval])) * 60", "{{outcome}}")],
              "Calls per minute. refused_token: somebody guesses, or phones have an old token. moved for many at once: the relay gave new addresses.", stack=True),
        panel("bargauge", "Whose deployment ends next?", [(f"bottomk(10, huntgroup_replica_seconds_to_expiry{{{OF_REPLICA}}})", "{{replica}}")],
              "Of the replicas with a known end. Nothing replaces a phone by itself.", "s", steps=[(3600, "text")]),
        panel("bargauge", "Which deployments are to be renewed next?", [("bottomk(10, huntgroup_deployment_seconds_to_end)", "{{deployment}}")],
              "Until the first of a deployment's replicas ends. On its last minutes nothing is started that would not be done.", "s", steps=[(3600, "text")]),
        lines("What goes with each deployment?", [("topk(10, huntgroup_deployment_slots)", "{{deployment}}")],
              "Slots of all its replicas; the ten largest."),
        lines("Of which phones is less asked, and why?", [("sum by (reason) (huntgroup_replica_limited > bool 0)", "{{reason}}")],
              "Phones that say that they are low on battery, warm, on a metered network or looked at. Of how many and for how long: the thresholds are in [reports].", stack=True),
        lines("Do new phones pass their quarantine?", [("sum by (outcome) (rate(huntgroup_quarantine_total[$__rate_interval])) * 60", "{{outcome}}")],
              "Test questions per minute. wrong_answer: something there is no phone with a model; its problem is in the list of replicas.", stack=True),

        row("Phones from the chain"),
        stat("Can the chain be read?", "min(huntgroup_chain_readable)", "1: the last look saw all there is. 0: GET /admin/chain says why not. Empty: nothing is looked up."),
        lines("Where do the chain's phones stand?", [("sum by (state) (huntgroup_chain_replicas)", "{{state}}")],
              "Phones that the chain assigns to the jobs that are looked up. matched have not accepted yet; unclear: what the chain says of them can't be used.", stack=True, width=10),
        lines("What came of looks at the chain?", [("sum by (outcome) (rate(huntgroup_chain_polls_total[$__rate_interval])) * 60", "{{outcome}}")],
              "Looks per minute. Anything but ok for long: what is known of the chain grows old.", stack=True, width=10),

        row("Speed and load, replica by replica"),
        lines("How fast do replicas read prompts?", [(top(f"huntgroup_replica_prefill_tokens_per_second{{{OF_REPLICA}}}"), "{{replica}}")],
              "Prompt tokens per second, from traffic; the ten fastest. Falling: the phone runs hot, or prompts grew longer.", width=8),
        lines("How fast do replicas write?", [(top(f"huntgroup_replica_decode_tokens_per_second{{{OF_REPLICA}}}"), "{{replica}}")],
              "Tokens per second of one answer, from traffic; the ten fastest.", width=8),
        panel("bargauge", "Which replicas write slowest?", [(f"bottomk(10, huntgroup_replica_decode_tokens_per_second{{{OF_REPLICA}}})", "{{replica}}")],
              "The ten slowest. One far below its equals is throttled or shared.", floor=0),
        table("What does each replica do?", columns, "One row a replica. Sort by a column; an empty cell has not been measured.",
              height=12, decimals=1),
    ]


def batches():
    of_lines = "huntgroup_batch_lines{{state=~\"{}\"}}".format
    done, every = f"sum({of_lines('completed|failed')})", "sum(huntgroup_batch_lines)"
    ended = "sum by (outcome) (rate(huntgroup_batch_lines_ended_total{}[$__rate_interval]))".format
    interactive = f'{OF_MODEL},class="interactive"'
    return [
        row("Now"),
        stat("How many batches are open?", "sum(huntgroup_batches)", "Batches that have not ended."),
        stat("How many lines are to go?", f"sum({of_lines('waiting|running')})", "Lines of open batches without a result."),
        stat("How much is done?", f"{done} / ({every} > 0)", "Share of the open batches' lines that have results. Empty without batches.",
             "percentunit", decimals=1),
        stat("When will all be done?", "max(huntgroup_batch_seconds_left)",
             "Until the last line has its result, at the pace of the last minutes. Empty while nobody can say.", "s"),
        stat("Will they make it?", "min(huntgroup_batch_slack_seconds)",
             "What the batch with least has to spare: the time until it expires, less what it still needs. Below 0 it will not make it.",
             "s", steps=[(-1e9, "red"), (0, "orange"), (1800, "green")]),
        stat("How many batches wait?", "sum(huntgroup_batches_waiting)", "Batches that could run lines and run none.",
             steps=[(0, "green"), (1, "orange")]),

        row("How they get on"),
        lines("How far are the batches?", [("sum by (state) (huntgroup_batch_lines)", "{{state}}")],
              "Lines of open batches. waiting becomes running, running becomes completed or failed; a batch that ends takes its lines away.",
              stack=True, width=12),
        lines("How many lines get results?", [(ended('{outcome=~"completed|failed"}'), "{{outcome}}")],
              "Lines per second: completed ones are in output files, failed ones in error files.", "ops", stack=True, width=12),
        lines("In which state are the batches?", [("sum by (state) (huntgroup_batches)", "{{state}}")],
              "validating: lines are read; in_progress: lines run; finalizing and cancelling: files are written.", stack=True),
        lines("What do they wait for?", [("sum by (reason) (huntgroup_batches_waiting)", "{{reason}}")],
              "replica: nobody serves the model; hours: batches.hours; memory: the process is short of it; disk: results can't be stored.", stack=True),
        lines("How many lines bring no result?", [(ended('{outcome=~"retried|returned|late"}'), "{{outcome}}")],
              "Lines per second. retried: phones failed under them; returned: there was no room, or their batch ended; late: the result came too late to count.",
              "ops", stack=True),
        lines("How long until all are done, and until the next one expires?",
              [("max(huntgroup_batch_seconds_left)", "all done"), ("min(huntgroup_batch_seconds_to_expiry)", "next expires")],
              "Of different batches, perhaps: the next panel compares each with its own time.", "s", width=12),
        lines("How much time is there to spare?", [("min by (instance) (huntgroup_batch_slack_seconds)", "{{instance}}")],
              "Of the batch with least. Falling steadily: its pace is too slow, or it waits. Below 0: it expires with lines undone.",
              "s", width=12, floor=None),

        row("What they cost interactive requests"),
        lines("How long until the first token of interactive requests?",
              quantiles("huntgroup_time_to_first_token_seconds", "class", interactive),
              "TTFT with the wait for a slot. It should not rise when batches run: lines take only what nobody else wants.", "s"),
        lines("How long do interactive requests wait for a slot?", quantiles("huntgroup_queue_wait_seconds", "class", interactive),
              "Rising with the number of running lines: lower batches.max_running, or let them run at night (batches.hours).", "s"),
        lines("How many lines run beside them?", [(f"sum({of_lines('running')})", "lines"), ('sum(huntgroup_replica_slots{state="free"})', "free slots")],
              "Lines on their way, in the queue or on a phone, and slots that are free all the same."),
        lines("How often does batch work make room?", [('sum by (decision) (rate(huntgroup_decisions_total{decision="gave_back"}[$__rate_interval]))', "{{decision}}")],
              "Running lines and other batch requests stopped for more urgent ones, a second. What they had read is read again.", "ops"),
        lines("How urgent is what waits?", [(f"sum by (class) (huntgroup_queue_depth{{{OF_MODEL}}})", "{{class}}")],
              "Lines wait as batch; those of a batch whose time is short as standard.", stack=True),

        row("Files"),
        lines("How much space do files take?", [("sum by (instance) (huntgroup_stored_file_bytes)", "{{instance}}")],
              "What tenants uploaded and batches wrote, as of the last minute. batches.max_bytes_per_tenant bounds each tenant's part, batches.keep_files its age.",
              "bytes", width=12),
        lines("How do calls about files and batches end?",
              [("sum by (call, outcome) (rate(huntgroup_batch_api_calls_total[$__rate_interval]))", "{{call}}: {{outcome}}")],
              "Calls per second.", "reqps", stack=True, width=12),
    ]


def tenants():
    failing = f'sum by (tenant) (rate(huntgroup_tenant_requests_total{{{OF_TENANT},outcome=~"{FAILED}"}}[15m]))'
    every = f"sum by (tenant) (rate(huntgroup_tenant_requests_total{{{OF_TENANT}}}[15m]))"
    of_time = f"sum by (tenant) (rate(huntgroup_tenant_{{}}{{{{{OF_TENANT}}}}}[$__rate_interval]))".format
    columns = {
        "in flight": f"sum by (tenant) (huntgroup_tenant_requests_in_flight{{{OF_TENANT}}})",
        "wait": f"sum by (tenant) (huntgroup_tenant_queue_depth{{{OF_TENANT}}})",
        "requests/min": f"{every} * 60",
        "failed share": f"({failing} or {every} * 0) / ({every} > 0)",
        "TTFT p95 (s)": f"histogram_quantile(0.95, sum by (le, tenant) (rate(huntgroup_tenant_time_to_first_token_seconds_bucket{{{OF_TENANT}}}[15m])))",
        "tokens/s": f"sum by (tenant) (rate(huntgroup_tenant_tokens_total{{{OF_TENANT}}}[15m]))",
        "ACU/day": f"sum by (tenant) (rate(huntgroup_tenant_cost_acu_total{{{OF_TENANT}}}[15m])) * 86400",
    }
    return [
        row("Now"),
        table("How is each tenant served?", columns,
              "One row a tenant; rates over the last 15 minutes. Sort by a column. An empty cell: no stream, or no phone with a price.",
              height=9, decimals=2),

        row("Who uses the pool"),
        lines("Whose requests are in flight?", [(f"sum by (tenant) (huntgroup_tenant_requests_in_flight{{{OF_TENANT}}})", "{{tenant}}")],
              "From when the tenant is known to the end of the answer; lines of batches are requests.", stack=True, width=12),
        lines("Whose requests wait?", [(f"sum by (tenant) (huntgroup_tenant_queue_depth{{{OF_TENANT}}})", "{{tenant}}")],
              "Requests without a slot. One tenant's alone while slots are busy: it is held to its share, the others are not held up.", stack=True, width=12),
        lines("Who sends how many requests?", [(of_time("requests_total"), "{{tenant}}")], "Requests that ended, a second.", "reqps", stack=True),
        lines("Who reads and writes how many tokens?",
              [(f"sum by (tenant, direction) (rate(huntgroup_tenant_tokens_total{{{OF_TENANT}}}[$__rate_interval]))", "{{tenant}}: {{direction}}")],
              "Tokens per second. Prompts take phones the longest where they share no beginning.", stack=True),
        lines("What does each tenant's work cost?", [(of_time("cost_acu_total") + " * 86400", "{{tenant}}")],
              "Slot time of its attempts, in ACU a day at this pace; nothing of idle phones, and nothing of phones without a price.", ACU, stack=True, decimals=2),

        row("How they are served"),
        lines("How long until the first token, by tenant?",
              quantiles("huntgroup_tenant_time_to_first_token_seconds", "tenant", OF_TENANT),
              "TTFT with the wait for a slot. One tenant's above the others': long prompts, a less urgent class, or its share.", "s", width=12),
        lines("How do their requests end?",
              [(f"sum by (tenant, outcome) (rate(huntgroup_tenant_requests_total{{{OF_TENANT}}}[$__rate_interval]))", "{{tenant}}: {{outcome}}")],
              "Requests per second by outcome. rate_limited: its own limits; client_gone: its own time-outs.", "reqps", stack=True, width=12),
        lines("Whose requests fail?",
              [(f'(sum by (tenant) (rate(huntgroup_tenant_requests_total{{{OF_TENANT},outcome=~"{FAILED}"}}[$__rate_interval])) or {of_time("requests_total")} * 0)'
                f' / ({of_time("requests_total")} > 0)', "{{tenant}}")],
              "Share of a tenant's requests that failed through no fault of its own.", "percentunit", width=12),
        lines("How urgent is what they send?",
              [(f"sum by (tenant, class) (rate(huntgroup_tenant_requests_total{{{OF_TENANT}}}[$__rate_interval]))", "{{tenant}}: {{class}}")],
              "Requests per second by class. All of it interactive: then nothing is, see max_class of tenants and keys.", "reqps", stack=True, width=12),
    ]


def cost():
    def per(what, seconds="$__rate_interval", by="", of=OF_MODEL):
        return f"sum{by} (rate(huntgroup_{what}{{{of}}}[{seconds}]))"

    pool, slots, wasted = "pool_cost_acu_total", "cost_acu_total", "wasted_cost_acu_total"
    of_model, day = " by (model)", " * 86400"
    lost = f"({per(wasted, '1h', of='')} or vector(0))"
    answers = f'sum{{}} (rate(huntgroup_requests_total{{{{{OF_MODEL},outcome="ok"}}}}[1h]))'.format
    tokens = f"sum{{}} (rate(huntgroup_tokens_total{{{{{OF_MODEL}}}}}[1h]))".format
    return [
        row("Now"),
        stat("What does the pool cost a day?", f"sum(huntgroup_pool_cost_acu_per_day{{{OF_MODEL}}})",
             "The stated prices of the replicas that are in the pool now.", ACU, decimals=2),
        stat("How many replicas state no price?", "sum(huntgroup_replicas_unpriced)",
             "Nothing here counts what these cost: above 0, all cost is a part of the truth.", steps=[(0, "green"), (1, "orange")]),
        stat("What share of the cost is of use?", f"({per(slots, '1h', of='')} - {lost}) / ({per(pool, '1h', of='')} > 0)",
             "Of the last hour, of all models whatever is chosen above: slot time of answers, by what the replicas cost in all. Whose model's time was wasted is not known.",
             "percentunit", decimals=1),
        stat("What share is wasted?", f"{lost} / ({per(pool, '1h', of='')} > 0)", "Of the last hour: slot time of attempts without a whole answer. Above 10 %: see the next row.",
             "percentunit", steps=[(0, "green"), (0.1, "orange"), (0.25, "red")], decimals=1),
        stat("What does one answer cost?", f"{per(pool, '1h')} / ({answers('')} > 0)",
             "Of the last hour: all that the replicas cost, by whole answers. Idle replicas are paid for as well.", ACU, decimals=5),
        stat("What do a million tokens cost?", f"1e6 * {per(pool, '1h')} / ({tokens('')} > 0)",
             "Of the last hour: all that the replicas cost, by tokens read and written.", ACU, decimals=2),

        row("What is paid for"),
        lines("Where does the money go?",
              [(f"({per(slots, of='')} - ({per(wasted, of='')} or vector(0))){day}", "used"), (f"({per(wasted, of='')} or vector(0)){day}", "wasted"),
               (f"({per(pool, of='')} - {per(slots, of='')}){day}", "idle")],
              "ACU a day at this pace, of all models. used: slot time of answers; wasted: of attempts without a whole one, written down when they end; idle: what "
              "no slot took.", ACU, stack=True, width=12, floor=None, decimals=2),
        lines("Why is cost wasted?", [(f"sum by (reason) (rate(huntgroup_wasted_cost_acu_total[$__rate_interval])){day}", "{{reason}}")],
              "ACU a day at this pace, by how the attempts ended. client_gone: clients give up sooner than phones answer; hedge_lost and given_back: the price of "
              "second copies and of room for urgent requests; others: phones.", ACU, stack=True, width=12, decimals=2),
        lines("Which models cost how much?", [(f"{per(pool, by=of_model)}{day}", "{{model}}")],
              "Replicas in the pool, used or not, in ACU a day at this pace.", ACU, stack=True, decimals=2),
        lines("How much of its replicas does each model use?", [(f"{per(slots, by=of_model)} / ({per(pool, by=of_model)} > 0)", "{{model}}")],
              "Cost of slots by cost of replicas. Low for long: the model has more replicas than it needs.", "percentunit"),
        lines("Which tenants cost how much?", [(f"sum by (tenant) (rate(huntgroup_tenant_cost_acu_total[$__rate_interval])){day}", "{{tenant}}")],
              "Slot time of their attempts, in ACU a day at this pace; idle time is nobody's.", ACU, stack=True, decimals=2),

        row("What it is worth"),
        lines("What does an answer cost, by model?",
              [(f"{per(pool, '1h', of_model)} / ({answers(of_model)} > 0)", "{{model}}: with idle replicas"), (f"{per(slots, '1h', of_model)} / ({answers(of_model)} > 0)", "{{model}}: its slots")],
              "ACU, over an hour. The two lines meet when the replicas are always busy.", ACU, width=12, decimals=5),
        lines("What do a million tokens cost, by model?",
              [(f"1e6 * {per(pool, '1h', of_model)} / ({tokens(of_model)} > 0)", "{{model}}: with idle replicas"), (f"1e6 * {per(slots, '1h', of_model)} / ({tokens(of_model)} > 0)", "{{model}}: its slots")],
              "ACU, over an hour, read and written tokens alike.", ACU, width=12, decimals=2),
        lines("How has the pool's price changed?", [(f"sum by (model) (huntgroup_pool_cost_acu_per_day{{{OF_MODEL}}})", "{{model}}")],
              "ACU a day: replicas that came and went, and prices that were stated anew.", ACU, stack=True, width=24, decimals=2),
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
    "tenant": variable("tenant", "Tenant", "label_values(huntgroup_tenant_requests_in_flight, tenant)"),
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


def dashboard(name, description, panels, variables):
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0,
              "current": {"text": "Prometheus", "value": "prometheus"}, "options": [], "refresh": 1, "regex": ""}
    return {
        "uid": f"huntgroup-{name}", "title": f"Huntgroup: {name}", "description": description, "tags": ["huntgroup"], "schemaVersion": 39,
        "version": 1, "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "annotations": {"list": []},
        "links": [{"type": "link", "title": other.capitalize(), "url": f"/d/huntgroup-{other}", "icon": "dashboard", "keepTime": True}
                  for other in DASHBOARDS if other != name],
        "templating": {"list": [source, *(VARIABLES[name] for name in variables)]},
        "panels": laid_out(panels),
    }


# Name: what it answers, its panels, its variables.
DASHBOARDS = {
    "overview": ("Whether clients are served, and what keeps them waiting.", overview, ["model", "class"]),
    "fleet": ("The replicas: states, slots, speeds, failures.", fleet, ["model", "replica"]),
    "batches": ("How far batches are, whether they will make it, what they cost.", batches, ["model"]),
    "tenants": ("Who uses the pool, how each tenant is served, and what that costs.", tenants, ["tenant"]),
    "cost": ("What the pool costs, what of it is used, wasted or idle, and for whom.", cost, ["model"]),
}


def files():
    return {f"{name}.json": dashboard(name, description, panels(), variables) for name, (description, panels, variables) in DASHBOARDS.items()}


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
