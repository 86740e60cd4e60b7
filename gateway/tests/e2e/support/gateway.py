"""The gateway under test: a configuration, a process, its two addresses, its metrics, and the rule of rest."""
import json
import os
import pathlib
import re

from . import http
from .deadline import eventually
from .process import Process, free_port

root = pathlib.Path(__file__).resolve().parents[4]
# The built programs; another build's (say, a release one) by E2E_BIN.
binaries = pathlib.Path(os.environ.get("E2E_BIN") or root / "target" / "debug")

KEY = "sk-e2e-0123456789abcdef0123456789abcdef"
OTHER_KEY = "sk-e2e-other-0123456789abcdef01234567"
ADMIN_TOKEN = "e2e-admin-token-0123456789"
# Upstream credentials, by the variable that the configuration names.
SECRETS = {"E2E_KEY": KEY, "E2E_OTHER_KEY": OTHER_KEY, "E2E_ADMIN_TOKEN": ADMIN_TOKEN, "E2E_PHONE_KEY": "sk-phone-0123456789"}

# Loopback replicas, and clocks that let a test be over soon. Everything else stays at its default: that is what ships.
DEFAULTS = {
    "server": {"drain_limit": "20s"},
    "pool": {"allow_private": True, "allow_http": True, "connect_timeout": "1s", "tls_timeout": "1s"},
    "health": {"interval": "1s", "timeout": "500ms", "penalty": "500ms", "penalty_cap": "2s"},
    "telemetry": {"log_level": "info"},
}


def toml(tree, path=()):
    """A configuration as TOML. Tables are dicts, lists of dicts are arrays of tables; an inline table is an `Inline`."""
    lines, tables = [], []
    for name, value in tree.items():
        if isinstance(value, dict) and not isinstance(value, Inline):
            tables.append((path + (name,), value, False))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [(path + (name,), entry, True) for entry in value]
        else:
            lines.append(f"{_key(name)} = {_value(value)}")
    for where, value, one_of_many in tables:
        header = ".".join(map(_key, where))
        lines.append(f"\n[[{header}]]" if one_of_many else f"\n[{header}]")
        lines.append(toml(value, where))
    return "\n".join(lines)


class Inline(dict):
    """A dict that is written as an inline table."""


def _key(name):
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def merged(base, over):
    """`base` with `over` laid upon it, table by table."""
    out = {k: merged(v, {}) if isinstance(v, dict) and not isinstance(v, Inline) else v for k, v in base.items()}
    for name, value in over.items():
        if isinstance(value, dict) and not isinstance(value, Inline):
            out[name] = merged(out.get(name, {}), value)
        else:
            out[name] = value
    return out


class Sample:
    """One line of the metrics page."""

    def __init__(self, name, labels, value):
        self.name, self.labels, self.value = name, labels, value


class Metrics:
    """A scrape: samples by name, and each family's kind."""

    def __init__(self, text):
        self.kinds, self.samples = {}, []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ", 3)
                self.kinds[name] = kind
            elif line and not line.startswith("#"):
                match = re.fullmatch(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?", line)
                assert match, f"not a line of the exposition format: {line!r}"
                labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
                self.samples.append(Sample(match[1], labels, float(match[3])))

    def of(self, name, **labels):
        return [s for s in self.samples if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())]

    def sum(self, name, **labels):
        return sum(s.value for s in self.of(name, **labels))

    def restless(self):
        """The gauges that should be 0 when nothing is asked of the gateway, and are not; and how many were looked at."""
        def counts(sample):
            if self.kinds.get(sample.name) != "gauge":
                return False
            busy = sample.name == "huntgroup_replica_slots" and sample.labels.get("state") == "busy"
            return busy or bool(re.search(r"in_flight|queue_depth|queued_bytes|streams_open", sample.name))

        looked_at = [s for s in self.samples if counts(s)]
        return [s for s in looked_at if s.value != 0], len(looked_at)


class Gateway:
    """One gateway process. `url` is the public address, `admin` the operator's. `within` is a command that runs it, if not itself;
    `flags` are more of its own."""

    def __init__(self, directory, config, key=KEY, within=(), flags=()):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, self.admin_port, self.key, self.within, self.flags = free_port(), free_port(), key, within, flags
        self.url, self.admin = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.admin_port}"
        fixed = {
            "server": {"listen": [f"127.0.0.1:{self.port}"]},
            "admin": {"listen": f"127.0.0.1:{self.admin_port}", "token": "env:E2E_ADMIN_TOKEN"},
            "store": {"path": str(self.directory / "huntgroup.db")},
            "tenants": {"e2e": {"keys": ["env:E2E_KEY"]}, "other": {"keys": ["env:E2E_OTHER_KEY"]}},
        }
        self.config = merged(merged(DEFAULTS, fixed), config)
        self.file = self.directory / "huntgroup.toml"
        self.write_config()
        self.start()

    def write_config(self):
        self.file.write_text(toml(self.config) + "\n")

    def start(self):
        """Starts the process and waits until it is alive. A second call, after a kill, is a restart on the same store."""
        self.process = Process(
            [*self.within, binaries / "huntgroup", "serve", "--config", self.file, *self.flags], self.directory / "gateway.log",
            env={**os.environ, **SECRETS}, cwd=self.directory,
        )
        eventually(self._alive, within=20, what="the gateway's /healthz")

    def _alive(self):
        if not self.process.alive:
            raise RuntimeError(f"the gateway ended with {self.process.code}:\n{self.process.tail()}")
        return http.request("GET", self.url + "/healthz", timeout=2).status == 200

    def wait_ready(self, replicas=None, within=20.0):
        """Waits until `replicas` replicas are ready (at least one, if None), by the gateway's own word."""
        def ready():
            states = [r["state"] for r in self.replicas()]
            assert states.count("ready") >= (replicas or 1), f"states: {states}"
            return http.request("GET", self.url + "/readyz", timeout=2).status == 200

        eventually(ready, within=within, what=f"{replicas or 'a'} ready replica(s)")
        return self

    def wait_known(self, within=30.0):
        """Waits until all that a ready replica is asked about itself has been asked, what costs it something included."""
        def known():
            waiting = [r["name"] for r in self.replicas() if r["state"] == "ready" and r["carries_on"] is None]
            assert not waiting, f"not tried yet: {waiting}"
            return True

        eventually(known, within=within, what="replicas that are known")
        return self

    # --- the public API ---

    def headers(self, **more):
        return {"authorization": f"Bearer {self.key}", **{k.replace("_", "-"): v for k, v in more.items()}}

    def post(self, path, json, timeout=60.0, headers=None):
        return http.request("POST", self.url + path, json=json, headers={**self.headers(), **(headers or {})}, timeout=timeout)

    def get(self, path, timeout=10.0, headers=None):
        return http.request("GET", self.url + path, headers={**self.headers(), **(headers or {})}, timeout=timeout)

    def chat(self, model="tiny", text="say some words", timeout=60.0, headers=None, **fields):
        body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", body, timeout=timeout, headers=headers)

    def stream(self, model="tiny", text="say some words", timeout=60.0, headers=None, path="/v1/chat/completions", **fields):
        body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True, **fields}
        return http.Stream(self.url + path, body, headers={**self.headers(), **(headers or {})}, timeout=timeout)

    # --- the operator's ---

    def manage(self, method, path, json=None, timeout=10.0):
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        return http.request(method, self.admin + path, json=json, headers=headers, timeout=timeout)

    def replicas(self):
        answer = self.manage("GET", "/admin/replicas")
        assert answer.status == 200, answer
        listed = answer.json()
        return listed if isinstance(listed, list) else listed["data"]

    def replica(self, url):
        """The replica at an address, as the admin API shows it; or None."""
        return next((r for r in self.replicas() if r["url"].rstrip("/") == url), None)

    def metrics(self):
        return Metrics(http.request("GET", self.admin + "/metrics", timeout=5).body.decode())

    def assert_at_rest(self, within=5.0):
        """Every in-flight, queue and busy-slot gauge is back to 0: whatever was taken has been given back."""
        def at_rest():
            restless, looked_at = self.metrics().restless()
            assert looked_at > 0, "no gauge to look at"
            assert not restless, ", ".join(f"{s.name}{s.labels} = {s.value:g}" for s in restless)
            return True

        eventually(at_rest, within=within, what="rest")

    def stop(self):
        return self.process.stop(within=25)


def replica(url, **stated):
    """A `[[replicas]]` entry."""
    return {"url": url, **stated}
