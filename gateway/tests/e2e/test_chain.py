"""Phones from the chain: who is assigned comes, serves under the key that the chain lists, and goes when the assignment ends."""
import hashlib
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from urllib.parse import urlsplit

import pytest

from support import chain as encoded
from support import http
from support.chain import Chain
from support.deadline import eventually

DAY = 86_400_000
OWNER, PHONE = b"\xd4" * 32, b"\x07" * 32


class Key:
    """A P-256 key as a phone has it, and the certificate that its tunnel signs with it: for a name that is no host's."""

    def __init__(self, directory, name):
        self.pem, self.cert = directory / f"{name}.key", directory / f"{name}.pem"
        run = lambda *argv: subprocess.run(["openssl", *argv], check=True, capture_output=True).stdout
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(self.pem),
            "-out", str(self.cert), "-days", "1", "-subj", "/CN=rcgen self signed cert", "-addext", "subjectAltName=DNS:agent")
        info = run("pkey", "-in", str(self.pem), "-pubout", "-outform", "DER")
        x, y = info[-64:-32], info[-32:]
        self.compressed = bytes([2 + (y[31] & 1)]) + x
        self.id = hashlib.sha256(self.compressed).digest()[:8].hex()
        self.pin = hashlib.sha256(info).hexdigest()


class Door:
    """The phone's end of the tunnel: TLS with its own key in front of a fake phone."""

    def __init__(self, key, phone):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(key.cert, key.pem)
        target = urlsplit(phone.url)
        door = self
        self.names = []
        context.sni_callback = lambda _socket, name, _context: door.names.append(name)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                try:
                    with context.wrap_socket(self.request, server_side=True) as client:
                        with socket.create_connection((target.hostname, target.port)) as engine:
                            back = threading.Thread(target=_copy, args=(engine, client), daemon=True)
                            back.start()
                            _copy(client, engine)
                            back.join(30)
                except OSError:
                    # The gateway refuses us, or either side has left.
                    pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _copy(source, sink):
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.fixture
def chain():
    made = Chain()
    yield made
    made.stop()


@pytest.fixture
def key(tmp_path):
    return Key(tmp_path, "phone")


def now_ms():
    return int(time.time() * 1000)


def deployment(chain, key=None, number=4711, start=-60_000, days=2, fee=2 * 10**12, processor=PHONE, owner=OWNER):
    """A job that began a minute ago, and one phone of it; the job as the configuration names it."""
    when = encoded.schedule(now_ms() + start, days * DAY)
    job = chain.register(owner, number, encoded.registration(when, slots=1))
    keys = (key.compressed, b"\x22" * 32) if key else None
    chain.assign(owner, number, processor, encoded.assignment(0, 1_000, fee, keys))
    return job


@pytest.fixture
def door(stage, key):
    made = Door(key, stage.phones(1, model="tiny")[0])
    yield made
    made.stop()


def start(stage, chain, port, **watched):
    config = {"chain": {"rpc": chain.url, "every": "1s", "suffix": f"acu.localhost:{port}", **watched}}
    return stage.gateway(config=config, ready=0)


def shown(gateway):
    answer = gateway.manage("GET", "/admin/chain")
    assert answer.status == 200, answer
    return answer.json()


def only(gateway):
    found = gateway.replicas()
    return found[0] if len(found) == 1 else None


def serving(gateway):
    return eventually(lambda: (r := only(gateway)) and r["state"] == "ready" and r, within=20, what="the chain's phone in service")


def test_an_assigned_phone_comes_serves_and_goes(stage, chain, key, door):
    job = deployment(chain, key)
    gateway = start(stage, chain, door.port, jobs=[job])
    phone = serving(gateway)
    assert phone["url"] == f"https://{key.id}.acu.localhost:{door.port}"
    assert (phone["source"], phone["deployment"], phone["verification"]) == ("chain", job, "assigned")
    assert phone["processor"] == encoded.address(PHONE) and phone["public_key"] == "22" * 32
    assert phone["cost_acu_per_day"] == pytest.approx(1.0)
    assert abs(phone["expires_at"] - (time.time() + 2 * 86_400 - 59)) < 10
    assert gateway.chat(text="hello", max_tokens=8).status == 200
    # The relay finds the phone by the name in the greeting.
    assert door.names[-1] == f"{key.id}.acu.localhost"
    told = shown(gateway)
    [of_job] = told["jobs"]
    [of_phone] = of_job["phones"]
    assert (told["failure"], told["whole"], told["not_understood"]) == (None, True, [])
    assert (of_job["deployment"], of_phone["state"], of_phone["replica"]) == (job, "running", phone["id"])
    metrics = gateway.metrics()
    assert metrics.sum("huntgroup_chain_polls_total", outcome="ok") >= 1
    assert metrics.sum("huntgroup_chain_replicas", state="running") == 1

    chain.unassign(OWNER, 4711, PHONE)
    eventually(lambda: gateway.replicas() == [], within=20, what="the phone to leave")


def test_a_deployers_jobs_are_found_and_those_whose_time_has_not_come_wait(stage, chain, key, door):
    deployment(chain, key, number=1)
    deployment(chain, key, number=2, start=3_600_000, processor=b"\x08" * 32)
    deployment(chain, None, number=3, processor=b"\x09" * 32)
    deployment(chain, key, number=4, start=-9 * DAY, days=1)
    deployment(chain, key, number=5, owner=b"\x55" * 32)
    gateway = start(stage, chain, door.port, deployers=[encoded.address(OWNER)])
    serving(gateway)
    states = {one["deployment"].rsplit(":")[-1]: one["phones"][0]["state"] for one in shown(gateway)["jobs"]}
    assert states == {"1": "running", "2": "waiting", "3": "matched"}


def test_another_key_than_the_chains_is_not_let_in(stage, chain, key, tmp_path):
    liar = Door(Key(tmp_path, "liar"), stage.phones(1, model="tiny")[0])
    try:
        gateway = start(stage, chain, liar.port, jobs=[deployment(chain, key)])
        known = eventually(lambda: (r := only(gateway)) and r["problem"] and r, within=20, what="a refused phone")
        assert "another key than the chain says" in known["problem"], known
        assert known["state"] != "ready"
    finally:
        liar.stop()


@pytest.mark.parametrize(
    "kind, outcome",
    [
        ("gone", "unreachable"), ("error", "refused"), ("garbage", "strange"), ("huge", "too_large"), ("behind", "stale"),
        ("slow", "timeout"),
    ],
)
def test_whatever_the_node_does_the_pool_stays(stage, chain, key, door, kind, outcome):
    gateway = start(stage, chain, door.port, jobs=[deployment(chain, key)])
    serving(gateway)
    if kind == "gone":
        chain.stop()
    elif kind == "error":
        chain.breaks = lambda _method, _body: b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"State already discarded"}}'
    elif kind == "garbage":
        chain.breaks = lambda method, body: body[: len(body) // 2] if method == "state_getKeysPaged" else body
    elif kind == "huge":
        chain.breaks = lambda method, body: b" " * (2 << 20) + body if method == "state_getKeysPaged" else body
    elif kind == "behind":
        chain.lag = 3_600
    elif kind == "slow":
        chain.breaks = lambda _method, body: time.sleep(15) or body
    # What a look would now find, if there were one.
    chain.unassign(OWNER, 4711, PHONE)
    times = 1 if kind == "slow" else 2
    seen = lambda: gateway.metrics().sum("huntgroup_chain_polls_total", outcome=outcome) >= times
    eventually(seen, within=30, what=f"looks that end {outcome}")
    assert only(gateway)["state"] == "ready"
    assert shown(gateway)["failure"]
    assert gateway.chat(text="still there", max_tokens=4).status == 200


def test_a_runtime_with_other_shapes_is_told_item_by_item_and_takes_nothing_away(stage, chain, key, door):
    job = deployment(chain, key)
    gateway = start(stage, chain, door.port, jobs=[job])
    serving(gateway)
    # One upgrade: a new layout, a field more in every match, and a key hashed in another way.
    chain.layouts["AcurastMarketplace"] = 8
    match = encoded.item("AcurastMarketplace", "StoredMatches")
    for at in [at for at in chain.storage if at.startswith(match)]:
        chain.storage[at] += b"\0"
    told = eventually(lambda: (t := shown(gateway))["not_understood"] and t, within=20, what="what is not understood")
    texts = {one["item"]: one["why"] for one in told["not_understood"]}
    assert "1 more bytes follow at byte" in texts["AcurastMarketplace.StoredMatches"]
    assert "storage layout 8, and 7 is the one known" in texts["AcurastMarketplace"]
    assert told["whole"] is False and told["jobs"][0]["phones"][0]["state"] == "unclear"
    # Renamed: nothing is found, and nothing is concluded from that.
    chain.storage.clear()
    polls = gateway.metrics().sum("huntgroup_chain_polls_total", outcome="partial")
    eventually(lambda: gateway.metrics().sum("huntgroup_chain_polls_total", outcome="partial") >= polls + 2, within=20, what="more looks")
    assert only(gateway)["state"] == "ready"


def test_a_phone_that_announces_itself_keeps_its_address_and_gets_its_end_and_cost_from_the_chain(stage, chain, key):
    job = deployment(chain, key)
    phone = stage.phones(1, model="tiny")[0]
    (stage.directory / "token").write_text("phones-0123456789abcdef")
    config = {
        "chain": {"rpc": chain.url, "every": "1s", "jobs": []},
        "registration": {"token": f"file:{stage.directory / 'token'}"},
    }
    config["chain"]["jobs"] = [job]
    # Before the chain has said anything: a look that fails is no hurry.
    chain.breaks = lambda _method, _body: b"{}"
    gateway = stage.gateway(config=config, ready=0)
    said = {"event": "started", "url": phone.url, "jobId": job, "processorAddress": encoded.address(PHONE)}
    answer = http.request("POST", gateway.admin + "/admin/register?token=phones-0123456789abcdef", json=said, timeout=10)
    assert answer.status == 201, answer
    chain.breaks = None
    known = eventually(lambda: (r := only(gateway)) and r["expires_at"] and r, within=30, what="the end of the deployment")
    assert (known["url"].rstrip("/"), known["source"], known["pin"]) == (phone.url, "registration", False)
    assert known["cost_acu_per_day"] == pytest.approx(1.0)
    # It had no key to sign with, so the chain does not make it more than it was.
    assert known["verification"] == "token"
    # Nor does it overrule what the chain says that it costs.
    claims = said | {"replica": {"cost_acu_per_day": 900_000}}
    assert http.request("POST", gateway.admin + "/admin/register?token=phones-0123456789abcdef", json=claims, timeout=10).status == 200
    assert only(gateway)["cost_acu_per_day"] == pytest.approx(1.0)
    assert serving(gateway)["id"] == known["id"]
