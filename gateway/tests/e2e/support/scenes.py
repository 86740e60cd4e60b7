"""The console without a gateway: its files as they are in the sources, and a feed that says what a test wants said.

A gateway shows what is; some of that (a relay that is down, a thousand phones that change all the time, a phone with a hostile name in
every field) takes long to bring about or cannot be. `Scene` is a feed in the form of `GET /admin/watch`; `Stand` serves one.

    python -m support.scenes NAME PORT        to look at one: any function below
"""
import http.server
import json
import pathlib
import queue
import random
import re
import sys
import threading
import time

from .gateway import root

files = root / "gateway" / "src" / "admin" / "console"
kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
source = (files.parent / "console.rs").read_text()
# The very policy that the gateway sends.
POLICY = re.sub(r"\\\n\s*", "", re.search(r'const POLICY: &str = "(.*?)";', source, re.S)[1])

MODELS = ("qwen3.5-9b", "qwen3.5-4b", "qwen3.5-0.8b")
TLS = "silence in the TLS handshake: the phone has lost its network, or two phones share this name"
APP = "a web page instead of the engine (status 502): the tunnel answers, the phone does not; is its app open?"


def phone(number, **over):
    """A replica as the feed tells it."""
    slots = (1, 2, 4)[number % 3]
    one = {
        "id": number, "name": f"phone-{number:03}", "url": f"https://{number:016x}.acu.run/", "state": "ready", "since_s": time.time() - 4000 - number * 7,
        "reason": "probe", "problem": None, "problem_next": None, "slots": slots, "usable": slots, "busy": 0, "lingering": 0, "foreign": 0,
        "models": [MODELS[number % 3]], "prefill": 41.2 + number % 7, "decode": 5.31 + number % 5, "answers": 120 + number, "failures": number % 4,
        "source": "config", "verification": "none", "deployment": f"Acurast:5Grw…:{4711 + number // 25}", "expires_at": None, "cost": 0.08, "limit": None,
        "draining": False, "drained": False, "removing": False, "dialect": "llama", "penalty_until": None, "doing": [],
    }
    one.update(over)
    takes_work = one["state"] in ("ready", "suspect", "probation") and (one["limit"] or {}).get("level") != "paused"
    if not takes_work:
        one["usable"] = over.get("usable", 0)
    return {"takes_work": takes_work, "missing": False, "prefill_assumed": None, "decode_assumed": None, **one}


def out(number, problem, **over):
    return phone(number, state="out", reason="hard_failure", problem=problem, since_s=time.time() - 300 - number % 40, usable=0, **over)


def working(one, chance=0.6, rng=random):
    """The same phone with some of its slots at work."""
    now = time.time()
    busy = sum(rng.random() < chance for _ in range(one["usable"]))
    doing = [
        {"request": f"req-{one['id']}-{i}", "phase": rng.choice(("prefill", "decode")), "class": rng.choice(("interactive", "standard", "batch")),
         "tenant": rng.choice(("fraud", "search", "nightly")), "model": one["models"][0], "since": now - rng.random() * 90}
        for i in range(busy)
    ]
    return {**one, "busy": busy, "doing": doing}


class Scene:
    """What a gateway would say. `events` is what a page hears at its start; `say` tells all that listen one thing more."""

    def __init__(self, replicas=(), queued=0, relays_down=(), waits=(), batches=(), points=360, seed=1, token=None, **totals):
        self.lock, self.listeners, self.calls, self.token = threading.Lock(), [], [], token
        self.answers = {}
        self.version, self.instance, self.started_at = "0.1.0", "mock", time.time() - 90_000
        rng, now = random.Random(seed), time.time()
        self.replicas = {one["id"]: one for one in replicas}
        self.extra = {"relays_down": list(relays_down), "queued": queued, **totals}
        ready = [one for one in replicas if one["state"] == "ready"]
        models = sorted({m for one in replicas for m in one["models"]})
        def estimate(model):
            served = any(model in one["models"] and one["takes_work"] for one in replicas)
            return (12.0 if dict(waits).get(model) else 0.4) if served else None

        by_model = [
            {"model": m, "waiting": dict(waits).get(m, 0), "estimate_s": estimate(m), "ready": sum(m in r["models"] for r in ready),
             "slots": sum(r["slots"] for r in ready if m in r["models"])}
            for m in models
        ]
        waiting, anybody = sum(n for _, n in waits), any(one["takes_work"] for one in replicas)
        self.queue = {
            "by_class": [
                {"class": "interactive", "waiting": waiting, "oldest_s": 48.0 if waiting else None, "estimate_s": 9.5 if anybody else None},
                {"class": "standard", "waiting": max(0, queued - waiting), "oldest_s": 20.0 if queued > waiting else None, "estimate_s": 21.0 if anybody else None},
                {"class": "batch", "waiting": 0, "oldest_s": None, "estimate_s": 90.0 if anybody else None},
            ],
            "by_tenant": [{"tenant": "fraud", "waiting": waiting, "oldest_s": 48.0}] if waiting else [], "others": 0, "by_model": by_model,
            "refused_after_s": 30.0,
        }
        doing = [{**what, "replica": one["name"]} for one in replicas for what in one["doing"]]
        self.requests = {"total": len(doing), "data": sorted((
            {"id": d["request"], "tenant": d["tenant"], "model": d["model"], "route": "/v1/chat/completions", "class": d["class"], "phase": d["phase"],
             "replica": d["replica"], "since": d["since"], "attempts": 1 + (i % 9 == 0), "content_events": 0 if d["phase"] == "prefill" else 10 + i}
            for i, d in enumerate(doing)), key=lambda q: q["since"])[:200]}
        self.batches = {"data": list(batches)}
        self.points = [
            {"at": now - (points - i) * 10, "requests": rng.randint(8, 16), "failed": int(rng.random() < 0.05), "prompt_tokens": 9000 + rng.randint(0, 5000),
             "completion_tokens": 2200 + rng.randint(0, 900), "ttft": {"interactive": [1.1, 2.4 + rng.random()], "standard": [6.0, 21 + 9 * rng.random()], "batch": None},
             "queued": rng.randint(0, 6), "busy": 90 + rng.randint(0, 30), "slots": 200, "ready": len(ready), "waits_p95": None}
            for i in range(points)
        ]
        self.log = [
            {"number": one["id"], "at": one["since_s"], "replica": one["id"], "name": one["name"], "url": None, "from": "ready", "to": one["state"], "reason": one["reason"],
             "detail": one["problem"], "event": "state"}
            for one in sorted(replicas, key=lambda r: r["since_s"])[-200:]
        ]
        self.advice, self.cost, self.deployments, self.registration = None, None, None, {"refused": []}

    def totals(self):
        all_, states = list(self.replicas.values()), {}
        for one in all_:
            standing = "paused" if (one["limit"] or {}).get("level") == "paused" else one["state"]
            states[standing] = states.get(standing, 0) + 1
        slots, busy = sum(r["usable"] for r in all_), sum(r["busy"] for r in all_)
        return {"replicas": states, "slots": slots, "busy": busy, "free": slots - busy, "in_flight": self.requests["total"], "store_ok": True, "draining": False,
                "memory": {"used": 61 << 20, "limit": 512 << 20}, **self.extra}

    def events(self):
        now = time.time()
        yield "hello", {"version": self.version, "started_at": self.started_at, "now": now, "instance": self.instance, "max_slots_shown": 64, "admin_token_needed": bool(self.token)}
        yield "pool", {"replicas": list(self.replicas.values())}
        for name in ("totals", "queue", "requests", "batches", "advice", "cost", "deployments", "registration"):
            value = getattr(self, name)
            value = value() if callable(value) else value
            if value is not None:
                yield name, value
        yield "history", {"every_s": 10, "points": self.points}
        yield "events", {"data": self.log}

    def say(self, name, data):
        with self.lock:
            for listener in self.listeners:
                listener.put((name, data))

    def change(self, *replicas, gone=()):
        """Replicas as they are now."""
        for one in replicas:
            self.replicas[one["id"]] = one
        for number in gone:
            self.replicas.pop(number, None)
        self.say("delta", {"replicas": list(replicas), "gone": list(gone)})
        self.say("totals", self.totals())

    def hang_up(self):
        """Ends all connections to the feed, as a gateway does that leaves."""
        self.say(None, None)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, body, kind="application/json", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-security-policy", POLICY)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _call(self):
        scene = self.server.scene
        path = self.path.split("?")[0]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if path == "/" or path == "/favicon.svg" or path.startswith("/console/"):
            file = files / ("index.html" if path == "/" else path.rsplit("/", 1)[1])
            return self._answer(200, file.read_bytes(), kinds[file.suffix] + "; charset=utf-8", cache_control="no-store")
        if scene.token and self.headers.get("authorization") != f"Bearer {scene.token}":
            return self._answer(401, {"error": {"message": "this needs the admin token: Authorization: Bearer TOKEN"}})
        if path == "/admin/watch":
            return self._watch(scene)
        scene.calls.append((self.command, self.path, json.loads(body) if body else None))
        status, answer = scene.answers.get((self.command, path), (404, {"error": {"message": f"no such path: {path}", "param": None}}))
        return self._answer(status, answer)

    do_GET = do_POST = do_DELETE = _call

    def _watch(self, scene):
        heard = queue.Queue()
        with scene.lock:
            first = list(scene.events())
            scene.listeners.append(heard)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for name, data in first:
                self._event(name, data)
            while True:
                try:
                    name, data = heard.get(timeout=10)
                except queue.Empty:
                    self.wfile.write(b":\n\n")
                    continue
                if name is None:
                    return
                self._event(name, data)
        except OSError:
            pass
        finally:
            with scene.lock:
                scene.listeners.remove(heard)

    def _event(self, name, data):
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # A page that leaves resets its connection: no matter.
    def handle_error(self, *_):
        pass


class Stand:
    """Serves a scene on a port of its own until it is closed. `scene` may be set anew: who comes from then on sees that."""

    def __init__(self, scene, port=0):
        self._server = Server(("127.0.0.1", port), Handler)
        self.scene = scene
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def scene(self):
        return self._server.scene

    @scene.setter
    def scene(self, scene):
        self._server.scene = scene

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scene.hang_up()
        self._server.shutdown()
        self._server.server_close()


# --- scenes ---

BATCHES = (
    {"id": "batch_0198c2", "tenant": "nightly", "model": "qwen3.5-4b", "state": "in_progress", "total": 50000, "completed": 31250, "failed": 12, "running": 44,
     "eta_s": 9300, "expires_in_s": 40000, "waits_for": None},
    {"id": "batch_0198d7", "tenant": "search", "model": "qwen3.5-0.8b", "state": "in_progress", "total": 800, "completed": 20, "failed": 0, "running": 0,
     "eta_s": None, "expires_in_s": 82000, "waits_for": "replica"},
)


def healthy(n=100):
    rng = random.Random(7)
    replicas = [working(phone(i), rng=rng) for i in range(1, n - 2)]
    replicas += [out(n - 2, TLS), out(n - 1, APP), working(phone(n, state="probation", reason="penalty_over", usable=1), 1, rng)]
    scene = Scene(replicas, batches=BATCHES, queued=0)
    scene.cost = {"object": "cost", "window": "24h", "from": 0, "to": 86400, "replicas": {"priced": n, "unpriced": 0}, "per_day": 8.0, "total": 7.9, "used": 4.4, "wasted": 0.3,
                  "idle": 3.2, "per_request": {"total": 0.0004}, "per_million_tokens": {"total": 0.21}}
    scene.advice = {"at": time.time() - 75, "age_s": None, "window_s": 3600, "data": [
        {"model": "qwen3.5-9b", "verdict": "more", "confidence": "good", "now": {"phones": 33, "slots": 33}, "wanted": 41, "kinds": [{"kind": "typical", "phones": 8}],
         "reasons": ["88 % of interactive requests had their first token within 2 s, 95 % are promised"]},
        {"model": "qwen3.5-4b", "verdict": "enough", "confidence": "good", "now": {"phones": 33, "slots": 66}, "wanted": 33, "wanted_last_look": 30, "kinds": [], "reasons": []}]}
    now = time.time()
    scene.deployments = {"data": [
        {"deployment": "Acurast:5Grw…:4711", "replicas": [f"phone-{n}" for n in range(24)], "slots": 56, "ends_at": now + 15000, "ends_in_s": 15000, "cost_acu_per_day": 1.9, "share_of_ready_slots": 0.24},
        {"deployment": "Acurast:5Grw…:4712", "replicas": [f"phone-{n}" for n in range(24, 49)], "slots": 58, "ends_at": now + 250000, "ends_in_s": 250000, "cost_acu_per_day": 2.0, "share_of_ready_slots": 0.25}]}
    return scene


def half_out(n=100):
    rng = random.Random(8)
    replicas = [out(i, TLS if i % 5 else APP) if i <= 52 else working(phone(i), 0.95, rng) for i in range(1, n + 1)]
    return Scene(replicas, queued=19, waits=(("qwen3.5-9b", 12),), batches=BATCHES)


def relay_down(n=100):
    at = time.time() - 400
    replicas = [phone(i, state="out", reason="relay_down", problem=REFUSED, since_s=at + i / 50, usable=0) for i in range(1, n + 1)]
    return Scene(replicas, queued=31, waits=tuple((m, 7) for m in MODELS), relays_down=["acu.run:443"])


REFUSED = "nobody accepts the connection (Connection refused): its relay is down, or the address is wrong"


def after_restart(n=12, back=7):
    """A gateway that was started anew a while ago, and that not all phones have come back to."""
    replicas = [working(phone(i)) for i in range(1, back + 1)]
    replicas += [phone(i, state="out", reason="hard_failure", problem=REFUSED, since_s=time.time() - 500 - i / 50, missing=True, models=[]) for i in range(back + 1, n + 1)]
    scene = Scene(replicas, points=52)
    scene.started_at = time.time() - 520
    return scene


def long_names():
    """Names as a chain and a model's publisher give them."""
    models = ("Qwen3.5-9B-Instruct-2512-Q4_K_M", "gemma-4-E4B-it-qat-q4_0-multimodal")
    over = {"models": [models[0]], "deployment": "Acurast:5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY:4711"}
    replicas = [working(phone(i, **{**over, "name": f"{0xE08B7B8CF5F31332 + i * 0x1111:016x}", "models": [models[i % 2]]})) for i in range(1, 8)]
    replicas.append(out(8, TLS, **{**over, "name": "pixel-7-pro-in-the-upper-shelf-of-room-4"}))
    scene = Scene(replicas, batches=[{**one, "id": "batch_0198c2f0a1b2c3d4e5f6a7b8c9d0e1f2", "model": models[0], "tenant": "nightly-summaries-of-the-legal-department"} for one in BATCHES[:1]])
    for one in scene.requests["data"]:
        one.update(id=f"req_0198c2f0a1b2{one['id'][4:]}a7b8c9d0", tenant="nightly-summaries-of-the-legal-department")
    scene.advice = {"window_s": 3600, "data": [{"model": models[1], "verdict": "more", "confidence": "low", "now": {"phones": 4, "slots": 9}, "wanted": 6,
                    "kinds": [{"kind": "typical", "phones": 2}], "reasons": ["standard: of 900 requests 88 % had their first token within 30 s; 95 % should."]}]}
    scene.deployments = {"data": [{"deployment": over["deployment"], "replicas": ["a"] * 8, "slots": 19, "ends_at": time.time() + 15000, "ends_in_s": 15000,
                                   "cost_acu_per_day": 1.9, "share_of_ready_slots": 1.0}]}
    return scene


def nobody_back():
    return after_restart(8, back=0)


def refused_phones():
    """Phones announce themselves, and are not taken."""
    now = time.time()
    scene = Scene([working(phone(i)) for i in range(1, 7)])
    scene.registration = {"refused": [
        {"reason": "wrong_token", "field": "authorization", "message": "the token is wrong", "peer": "10.0.4.17", "count": 3, "first_at": now - 900, "last_at": now - 130},
        {"reason": "invalid", "field": "replica.slots", "message": "replica.slots must be a whole number from 1 to 1024, not 0", "peer": "10.0.4.18", "count": 1,
         "first_at": now - 700, "last_at": now - 700}]}
    return scene


def empty():
    return Scene([], points=0)


def thousand(n=1000):
    rng = random.Random(9)
    replicas = [working(phone(i), 0.7, rng) for i in range(1, n - 79)]
    replicas += [out(i, TLS if i % 3 else APP) for i in range(n - 79, n - 29)]
    replicas += [phone(i, state="misconfigured", problem='it serves "a", not "b": set replica_names', usable=0) for i in range(n - 29, n - 24)]
    replicas += [phone(i, state="loading", problem="loading its model (40 %)", usable=0) for i in range(n - 24, n - 9)]
    replicas += [phone(i, state="draining", draining=True) for i in range(n - 9, n + 1)]
    return Scene(replicas, batches=BATCHES)


def mixed():
    """A phone in every state, and every limit."""
    replicas = [working(phone(i), 0.8) for i in range(1, 9)]
    states = ("out", "misconfigured", "suspect", "quarantine", "probation", "draining", "loading", "joining")
    replicas += [phone(10 + i, state=state, problem=TLS if state == "out" else None, draining=state == "draining") for i, state in enumerate(states)]
    replicas += [
        phone(20, limit={"level": "paused", "reason": "battery at 12 %"}, problem="battery at 12 %"), phone(21, limit={"level": "fewer", "reason": "42.1 °C"}),
        phone(22, problem="the phone says: the engine ran out of memory and was started anew"),
    ]
    return Scene(replicas)


if __name__ == "__main__":
    name, port = sys.argv[1], int(sys.argv[2])
    with Stand(globals()[name](), port) as stand:
        print(stand.url, flush=True)
        threading.Event().wait()
