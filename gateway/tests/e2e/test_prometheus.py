"""Dashboards and alerts on the real Prometheus: it scrapes a gateway under load and runs every expression that operators will see.

`gateway/tests/dashboards.rs` checks that the names exist; here each expression must bring data. A panel whose expression is valid
and always empty (a label that is never set, a division by series that do not match) is found only this way.
"""
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

from conftest import Stage
from support import http
from support.deadline import eventually
from support.gateway import binaries, replica, root
from support.process import Process, free_port

# One worker: the gateway, its load and Prometheus are started once for all panels.
pytestmark = pytest.mark.xdist_group("prometheus")

DASHBOARDS = [root / "dashboards" / name for name in ("overview.json", "fleet.json")]
# What Grafana fills in. Scraped once a second here, so that a few seconds of load fill a window.
VARIABLES = {"$model": ".*", "$class": ".*", "$replica": ".*", "$__rate_interval": "15s"}
WINDOW_S = 15


def tool(name):
    """A program of Debian's package `prometheus`: unpacked beside this Python by install.sh, or installed."""
    beside = pathlib.Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"no {name}: run gateway/tests/e2e/install.sh"
    return found


def promtool(*arguments, cwd=root):
    done = subprocess.run([tool("promtool"), *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus with the repository's configuration, one target, and everything sped up to a second."""

    def __init__(self, directory, target):
        directory.mkdir()
        text = (root / "config" / "prometheus.yml").read_text()
        for standing, here in (
            ('"127.0.0.1:9091"', f'"{target}"'),
            ("scrape_interval: 5s", "scrape_interval: 1s"),
            ("evaluation_interval: 15s", "evaluation_interval: 1s"),
            ("../dashboards/alerts.yaml", str(root / "dashboards" / "alerts.yaml")),
        ):
            assert text.count(standing) == 1, f"config/prometheus.yml has changed: {standing}"
            text = text.replace(standing, here)
        (directory / "prometheus.yml").write_text(text)
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self.process = Process(
            [tool("prometheus"), f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address={address}", "--log.level=warn"],
            directory / "prometheus.log",
        )
        eventually(lambda: http.request("GET", self.url + "/-/ready", timeout=2).status == 200, within=30, what="Prometheus")

    def get(self, path, **query):
        answer = http.request("GET", f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=20)
        body = answer.json()
        assert answer.status == 200 and body["status"] == "success", f"{query}: {body}"
        return body["data"]

    def query(self, expression):
        """The values of an instant query; raises when the expression is wrong."""
        return [float(sample["value"][1]) for sample in self.get("/api/v1/query", query=expression)["result"]]

    def rules(self):
        return [rule for group in self.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def stop(self):
        self.process.stop()


class Load:
    """Requests of every kind, over and over, from a few threads: each class, streamed and plain, and clients that leave or fail."""

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
        text = "one beginning that all requests share " * 20 + f"and an end of its own {turn}"
        if turn % 25 == 0:
            with self._gateway.stream(text=text, max_tokens=200, headers=headers) as stream:
                next(stream.events())
            return
        if turn % 10 == 3:
            answer = self._gateway.chat(text=text, max_tokens=200, headers={**headers, "x-huntgroup-deadline": "0.2"})
            assert answer.status in (200, 504), answer
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
            thread.join(30)
            assert not thread.is_alive(), "a request of the load never ended"


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


def watched(stage):
    phones = stage.phones(4, model="tiny", slots=2, speed="0.8b", time_scale=20)
    in_a_day = int(time.time()) + 86_400
    entries = [replica(phone.url, expires_at=in_a_day) for phone in phones]
    # The faults of the load make attempts fail over; they do not take phones out, which would make answers wait.
    gateway = stage.gateway(entries, config={"health": {"hard_failures": 100, "min_samples": 1000}})
    watch = stage._join(Prometheus(stage.place("prometheus"), gateway.admin.removeprefix("http://")))
    load = Load(gateway, phones)

    def seen():
        assert not load.odd, load.odd
        return watch.query(f"min(count_over_time(up[{WINDOW_S}s])) >= {WINDOW_S - 1}")

    try:
        eventually(seen, within=90, what="a window full of scrapes", every=0.2)
        watch.load = load
        yield watch
    finally:
        load.stop()
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

    # Rates of something that happens now and then may need one more scrape.
    eventually(shown, within=20, what="data", every=0.5)
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


def test_configuration_and_rules_are_valid_and_every_alert_fires_in_its_story():
    promtool("check", "config", "config/prometheus.yml")
    promtool("check", "rules", "dashboards/alerts.yaml")
    promtool("test", "rules", "alerts_test.yaml", cwd=root / "dashboards")


def test_the_dashboards_are_what_their_script_writes():
    done = subprocess.run([sys.executable, root / "dashboards" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
