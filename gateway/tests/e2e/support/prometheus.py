"""Prometheus as it is deployed: Debian's programs, the repository's configuration, other targets and a faster clock."""
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.parse

from . import http
from .deadline import eventually
from .gateway import root
from .process import Process, free_port

RULES = root / "dashboards" / "alerts.yaml"


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
    """A Prometheus with the repository's configuration, but for its targets, (address, labels) each, its rules, and how often it looks."""

    def __init__(self, directory, targets, rules=RULES, every="1s"):
        directory.mkdir()
        text = (root / "config" / "prometheus.yml").read_text()
        lines = [f'- targets: ["{address}"]\n        labels: {json.dumps(labels)}' for address, labels in targets]
        for standing, here in (
            ('- targets: ["127.0.0.1:9091"]', "\n      ".join(lines)),
            ("scrape_interval: 5s", f"scrape_interval: {every}"),
            ("evaluation_interval: 15s", f"evaluation_interval: {every}"),
            ("../dashboards/alerts.yaml", str(rules)),
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

    def samples(self, expression):
        """An instant query: (labels, value) of each series; raises when the expression is wrong."""
        return [(sample["metric"], float(sample["value"][1])) for sample in self.get("/api/v1/query", query=expression)["result"]]

    def query(self, expression):
        """The values of an instant query."""
        return [value for _, value in self.samples(expression)]

    def rules(self):
        return [rule for group in self.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def stop(self):
        self.process.stop()
