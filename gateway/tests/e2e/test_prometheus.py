"""Dashboards and alerts on the real Prometheus: it scrapes a gateway under load and runs every expression that operators will see.

`gateway/tests/dashboards.rs` checks that the names exist; here each expression must bring data. A panel whose expression is valid
and always empty (a label that is never set, a division by series that do not match) is found only this way.
"""
import json
import math
import re
import subprocess
import sys
import threading
import time

import pytest

from conftest import Stage
from support import http
from support.cases import sdk
from support.chain import Chain
from support.deadline import eventually
from support.gateway import OTHER_KEY, SECRETS, binaries, replica, root
from support.process import free_port
from support.prometheus import Prometheus, promtool

# One worker: the gateway, its load and Prometheus are started once for all panels.
pytestmark = pytest.mark.xdist_group("prometheus")

DASHBOARDS = sorted(path for path in (root / "dashboards").glob("*.json"))
# What Grafana fills in. Scraped once a second here, so that a few seconds of load fill a window.
VARIABLES = {"$model": ".*", "$tenant": ".*", "$class": ".*", "$replica": ".*", "$__rate_interval": "15s"}
WINDOW_S = 15
SECRETS["E2E_DOOR"] = "e2e-door-0123456789"


class Load:
    """Requests of every kind, over and over, from a few threads: each class, of two tenants, streamed and plain, and clients that leave or fail."""

    def __init__(self, gateway, phones):
        self._gateway, self._phones, self._over = gateway, phones, threading.Event()
        self.answered, self.odd = 0, []
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(6)]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        turn = number
        while not self._over.is_set():
            turn += 1
            try:
                self._one(turn)
                self.answered += 1
            except Exception as error:  # whatever it is, the test shall see it
                self.odd.append(error)
                return

    def _one(self, turn):
        headers = {"x-huntgroup-class": ("interactive", "standard", "batch")[turn % 3]}
        if turn % 4 == 0:
            headers["authorization"] = f"Bearer {OTHER_KEY}"
        text = "one beginning that all requests share " * 20 + f"and an end of its own {turn}"
        if turn % 25 == 0:
            with self._gateway.stream(text=text, max_tokens=200, headers=headers) as stream:
                next(stream.events())
            return
        if turn % 10 == 3:
            answer = self._gateway.chat(text=text, max_tokens=200, headers={**headers, "x-huntgroup-deadline": "0.2"})
            # 503: it would have waited longer than that.
            assert answer.status in (200, 504) or answer.error["code"] == "overloaded", answer
            return
        if turn % 10 == 5:
            self._phones[turn % len(self._phones)].fault("reset_before_head", next=1, on="work")
        with self._gateway.stream(text=text, max_tokens=20, headers=headers) as stream:
            assert stream.head() == 200, stream.status
            for _ in stream.events():
                pass
        answer = self._gateway.chat(text=text, max_tokens=8, headers=headers)
        assert answer.status == 200, answer

    def stop(self):
        self._over.set()
        for thread in self._threads:
            # Two requests may be left to it, each of which fails by itself after 60 s.
            thread.join(130)
            assert not thread.is_alive(), "a request of the load never ended"
        assert not self.odd, self.odd


class NightWork:
    """A batch with more lines than can be run meanwhile: it is in progress as long as anybody looks."""

    def __init__(self, gateway):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "is this odd?"}], "max_tokens": 8}
        line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        text = "".join(json.dumps({"custom_id": str(number), **line}) + "\n" for number in range(40_000))
        self._client = sdk(gateway)
        file = self._client.files.create(file=("night.jsonl", text.encode()), purpose="batch")
        self._id = self._client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id

    def stop(self):
        with self._client:
            self._client.batches.cancel(self._id)
            eventually(lambda: self._client.batches.retrieve(self._id).status == "cancelled", within=30, what="the end of the batch")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A Prometheus that has watched a gateway under load for longer than the shortest window, and still does.

    On a stage of its own: the rule of rest after each test is for gateways whose load has ended. Here it is held to at the end.
    """
    stage = Stage(tmp_path_factory.mktemp("prometheus"))
    try:
        yield from watched(stage)
    finally:
        stage.end()


def announced(gateway, door, phone, ends_at):
    """A phone comes by itself, passes its quarantine, and says that its battery is low."""
    who = {"webUrl": phone.url, "deployment": "autumn", "processor": "pixel"}
    assert http.request("POST", door, json={"event": "started", **who, "replica": {"expires_at": ends_at, "cost_acu_per_day": 0.5}}).status == 201
    gateway.wait_ready(5)
    assert http.request("POST", door, json={"event": "heartbeat", **who, "report": {"battery": 20, "charging": False}}).status == 200


def watched(stage):
    phones = stage.phones(5, model="tiny", slots=2, speed="0.8b", time_scale=20)
    in_a_day = int(time.time()) + 86_400
    prices = [{"cost_acu_per_day": price} for price in (0.57, 0.6, 0.0)] + [{}]
    entries = [replica(phone.url, expires_at=in_a_day, **price) for phone, price in zip(phones, prices)]
    door, chain = f"127.0.0.1:{free_port()}", Chain()
    # The faults of the load make attempts fail over; they do not take phones out, which would make answers wait.
    gateway = stage.gateway(entries, config={
        "health": {"hard_failures": 100, "min_samples": 1000}, "registration": {"listen": door, "token": "env:E2E_DOOR"},
        "capacity": {"every": "2s"}, "chain": chain.watched(),
    })
    announced(gateway, f"http://{door}/admin/register?token={SECRETS['E2E_DOOR']}", phones[4], in_a_day)
    watch = stage._join(Prometheus(stage.place("prometheus"), [(gateway.admin.removeprefix("http://"), {})]))
    load, night_work = Load(gateway, phones), NightWork(gateway)

    def seen():
        assert not load.odd, load.odd
        return watch.query(f"min(count_over_time(up[{WINDOW_S}s])) >= {WINDOW_S - 1}")

    try:
        eventually(seen, within=90, what="a window full of scrapes", every=0.2)
        watch.load = load
        yield watch
    finally:
        load.stop()
        night_work.stop()
        chain.stop()
    stage.assert_at_rest()


def expressions():
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield pytest.param(target["expr"], id=f"{path.stem}: {panel['title']} {target['refId']}")


@pytest.mark.parametrize("expression", list(expressions()))
def test_a_panel_shows_data_under_load(prometheus, expression):
    filled = expression
    for variable, value in VARIABLES.items():
        filled = filled.replace(variable, value)
    assert "$" not in filled, f"a variable that only Grafana knows: {filled}"

    def shown():
        values = prometheus.query(filled)
        assert values, f"empty: {filled}"
        assert any(math.isfinite(value) for value in values), f"only {values}: {filled}"
        return True

    # Rates of something that happens now and then may need one more scrape; the first look at capacity plays what came some twenty
    # times, which takes a build that is not optimised the longer the more came before it.
    eventually(shown, within=180, what="data", every=0.5)
    assert not prometheus.load.odd, prometheus.load.odd


def selectors(expression):
    """The series that an expression reads, each as a query of its own."""
    return re.findall(r"\b(?:huntgroup_|process_|up\b)[a-z0-9_]*(?:\{[^}]*\})?", expression)


def test_every_alert_is_evaluated_and_reads_series_that_exist(prometheus):
    rules = prometheus.rules()
    assert len(rules) > 10
    for rule in rules:
        def evaluated(name=rule["name"]):
            now = next(each for each in prometheus.rules() if each["name"] == name)
            assert now["health"] == "ok", f"{name}: {now['health']} {now.get('lastError')}"
            return True

        eventually(evaluated, within=20, what="the evaluation", every=0.5)
        read = selectors(rule["query"])
        assert read, rule["query"]
        for selector in read:
            eventually(lambda selector=selector: prometheus.query(selector), within=20, what=f"{rule['name']}: {selector}", every=0.5)


def test_no_alert_fires_while_all_is_well(prometheus):
    firing = [rule["name"] for rule in prometheus.rules() if rule["state"] == "firing"]
    assert firing == []


def test_the_load_was_answered(prometheus):
    eventually(lambda: prometheus.load.answered > 50, within=60, what="50 answers")
    assert not prometheus.load.odd, prometheus.load.odd


def test_all_dashboards_are_provisioned():
    """Compose hands each file to Grafana, which reads the folder."""
    mounted = set(re.findall(r"\./dashboards/(\w+\.json):/etc/grafana/dashboards/\1:ro", (root / "docker-compose.yml").read_text()))
    assert mounted == {path.name for path in DASHBOARDS} and len(mounted) > 4
    provider = (root / "config/grafana/provisioning/dashboards/huntgroup.yaml").read_text()
    assert "path: /etc/grafana/dashboards" in provider


def test_costs_add_up_and_are_the_tenants_own(prometheus):
    def added_up():
        pool, slots, tenants = (
            sum(prometheus.query(f"sum(huntgroup_{name}_total)"))
            for name in ("pool_cost_acu", "cost_acu", "tenant_cost_acu")
        )
        assert 0 < slots < pool, (slots, pool)
        assert math.isclose(slots, tenants, rel_tol=0.05), "two queries, a scrape apart at most"
        assert prometheus.query("sum(huntgroup_replicas_unpriced)") == [2.0], "one states none, and one only by itself"
        return True

    eventually(added_up, within=20, what="sums", every=0.5)


def test_configuration_and_rules_are_valid_and_every_alert_fires_in_its_story():
    promtool("check", "config", "config/prometheus.yml")
    promtool("check", "rules", "dashboards/alerts.yaml")
    promtool("test", "rules", "alerts_test.yaml", cwd=root / "dashboards")


def test_the_dashboards_are_what_their_script_writes():
    done = subprocess.run([sys.executable, root / "dashboards" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_panel_sets_a_chosen_model_against_all():
    boards = sorted((root / "dashboards").glob("*.json"))
    assert boards
    for board in boards:
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel.get("targets", []):
                selectors = re.findall(r"\bhuntgroup_\w+(?:\{([^}]*)\})?", target["expr"])
                assert len({"$model" in one for one in selectors}) <= 1, (board.name, panel["title"], target["expr"])


def test_the_commands_of_the_runbook_exist():
    text = (root / "gateway" / "docs" / "runbook.md").read_text()
    named = [command.split() for command in re.findall(r"`huntgroup ([^`]+)`", text)]
    assert len(named) > 8
    for words in named:
        path = [word for word in words if word.islower() and not word.startswith("-")][: 1 if words[0] == "check" else 2]
        helped = subprocess.run([binaries / "huntgroup", *path, "--help"], capture_output=True, text=True)
        assert helped.returncode == 0, f"{words}: {helped.stderr}"
        for flag in (word for word in words if word.startswith("--")):
            assert f"{flag} " in helped.stdout, f"{words}: no {flag}"
