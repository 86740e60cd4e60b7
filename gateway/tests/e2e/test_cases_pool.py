"""What users of such gateways report, and the answer ours must give: connections, bodies, health, reload and drain, phones.

The number in a test's id is the report's. See support/cases.py.
"""
import concurrent.futures
import pathlib
import re
import signal
import time

import pytest

from support import http as web
from support.cases import ASK, case, in_flight, started, text, together
from support.deadline import NotYet, eventually
from support.gateway import replica
from support.phones import expected_text
from support.process import free_port, may_mount

# I. Connections and tunnels

@case(95, "idle connections are not trusted")
@pytest.mark.parametrize("idle", [0.1, 0.3])
def test_stale_connections(row, stage, idle):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("stale_keep_alive", idle_s=idle)
    for _ in range(15):
        assert gateway.chat(max_tokens=1).status == 200
        time.sleep(idle)   # not a wait: the pause is what the report is about
    assert gateway.replicas()[0]["state"] == "ready"


@case(97, "a phone that closes every few requests is no failure")
def test_few_requests_a_connection(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("stale_keep_alive", idle_s=5, max_requests=5)
    assert [gateway.chat(max_tokens=1).status for _ in range(30)] == [200] * 30


@case(99, "a reused connection that dies after the body gets one fresh try")
def test_a_fresh_try(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("stale_keep_alive", idle_s=5, close_after_reading_body_on_reused=True)
    answers = [gateway.chat(max_tokens=1) for _ in range(12)]
    assert [a.status for a in answers] == [200] * 12
    assert {a.headers["x-huntgroup-attempts"] for a in answers} == {"1"}
    assert gateway.metrics().sum("huntgroup_failovers_total") == 0
    assert gateway.replicas()[0]["state"] == "ready"


@case(103, "a tunnel's page is a phone that is down")
@pytest.mark.parametrize("status", [200, 404, 502, 530])
def test_a_tunnels_page(row, stage, status):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("html", status=status)
    for _ in range(6):
        assert text(gateway.chat(text=ASK, max_tokens=4)) == expected_text(ASK, 4)
    eventually(lambda: gateway.replica(phones[0].url)["state"] == "out", within=10, what="the phone taken out")
    phones[0].heal()

    def back():
        # Probation ends with good answers, so there must be requests.
        assert gateway.chat(max_tokens=1).status == 200
        return gateway.replica(phones[0].url)["state"] == "ready"

    eventually(back, within=10, what="the phone's return")


@case(105, "next never means the same")
@pytest.mark.parametrize("fault", ["refuse", "app_closed", "unknown_id"])
def test_next_is_another(row, stage, fault):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault(fault)
    for _ in range(6):
        answer = gateway.chat(text=ASK, max_tokens=4)
        assert text(answer) == expected_text(ASK, 4)
        assert answer.headers["x-huntgroup-replica"] == gateway.replica(phones[1].url)["name"]


# J. Bodies

@case(109, "a replayed body is the same body")
@pytest.mark.parametrize("size", [1_000, 70_000, 1_000_000])
def test_a_replayed_body(row, stage, size):
    phones = stage.phones(2, model="tiny", context=100_000_000)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("reset_before_head", next=1)
    question = "x" * size
    answers = together(2, lambda _: gateway.chat(text=question, max_tokens=3))
    seen = [r for phone in phones for r in phone.requests()]
    assert len({(r["body_sha256"], r["body_bytes"]) for r in seen}) == 1 and seen[0]["body_bytes"] > size
    assert len(seen) >= 2
    assert all(a.status == 200 and text(a) == expected_text(question, 2) + " " + "x" * 64 for a in answers) or 502 in [a.status for a in answers]


@case(111, "the limit of bodies is a setting and its answer tidy")
def test_the_body_limit(row, stage):
    gateway = stage.gateway(stage.phones(1, model="tiny", context=1_000_000), config={"server": {"max_body": "100KiB"}})
    assert gateway.chat(text="x" * 90_000, max_tokens=1).status == 200
    refused = gateway.chat(text="x" * 110_000, max_tokens=1)
    assert refused.status == 413 and refused.error["type"] == "invalid_request_error"


@case(113, "a long stream takes no memory")
def test_a_long_stream(row, stage):
    phones = stage.phones(1, model="tiny", context=1_000_000)
    gateway = stage.gateway(phones)
    with gateway.stream(text="x" * 60, max_tokens=100) as stream:
        list(stream.events())
    before = gateway.metrics().sum("process_resident_memory_bytes")
    with gateway.stream(text="x" * 60, max_tokens=40_000) as stream:
        for _ in stream.events():
            pass
    assert len(stream.raw) > 5_000_000
    assert gateway.metrics().sum("process_resident_memory_bytes") - before < 8 << 20


# K. Health

@case(117, "phones that are all busy are not an empty pool")
def test_busy_is_not_dead(row, stage):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("slow", seconds=5, next=1)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = [pool.submit(gateway.chat, text=ASK, max_tokens=3) for _ in phones]
        eventually(lambda: all(p.stats()["running_now"] for p in phones), what="both at work")
        for phone in phones:
            phone.fault("busy")
        with pytest.raises(NotYet):
            eventually(lambda: gateway.get("/readyz").status != 200 or "out" in [r["state"] for r in gateway.replicas()],
                       within=3, what="a busy phone taken for dead")
        assert [r.result().status for r in running] == [200, 200]


@case(119, "a request's own fault neither heals nor hurts a phone")
def test_client_errors_are_neutral(row, stage):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones, config={
        "health": {"soft_failures": 3, "max_soft_ejected": 1.0, "panic_share": 0.0}, "scheduler": {"max_attempts": 1}
    })
    for phone in phones:
        phone.fault("slow", seconds=4, next=1)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        held = pool.submit(gateway.chat, text=ASK, max_tokens=2)   # keeps one phone, so that the other gets all that follows
        taken = eventually(lambda: [p for p in phones if p.stats()["running_now"]], what="a phone at work")[0]
        phone = next(p for p in phones if p is not taken)
        for code in [500, 500, 400, 400, 400, 500]:
            assert gateway.replica(phone.url)["state"] in ("ready", "suspect")
            phone.fault("status", code=code, next=1)
            assert gateway.chat(text=ASK).status == (400 if code == 400 else 502)
        assert gateway.replica(phone.url)["state"] == "out", "the 400s between were counted as successes"
        assert held.result().status == 200


@case(121, "one late probe changes nothing")
def test_a_late_probe(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    before = phones[0].stats()["probes"]
    phones[0].fault("slow", seconds=2, next=1, on="probes")
    eventually(lambda: phones[0].stats()["probes"] >= before + 2, within=10, what="two more probes")
    assert gateway.metrics().sum("huntgroup_replica_state_changes_total", to="out") == 0
    assert gateway.chat(max_tokens=1).status == 200


@case(123, "silent probes leave a running stream alone")
def test_probes_and_streams(row, stage):
    phones = stage.phones(1, model="tiny", slots=2)
    gateway = stage.gateway(phones)
    phones[0].fault("drip", bytes_per_s=15000)
    with gateway.stream(text=ASK, max_tokens=14) as stream:
        events = stream.events()
        first = next(events)
        phones[0].fault("freeze_before_head", on="probes")
        rest = [first, *events]
    assert rest[-1] == "[DONE]" and web.text_of(rest) == expected_text(ASK, 14)


@case(125, "health is told from memory")
def test_health_is_quick(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("refuse")
    eventually(lambda: gateway.get("/readyz").status == 503, within=10, what="not ready")
    times = sorted(gateway.get("/healthz").seconds for _ in range(20))
    assert times[10] < 0.05 and gateway.get("/healthz").status == 200


@case(127, "the pauses of a failing phone grow")
def test_back_off(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones, config={"health": {
        "soft_failures": 1, "penalty": "1s", "penalty_cap": "30s", "penalty_jitter": 0.0, "max_soft_ejected": 1.0, "panic_share": 0.0
    }})
    phones[0].fault("status", code=500)
    name = gateway.replica(phones[0].url)["name"]
    times, until = [], time.monotonic() + 9
    while time.monotonic() < until:
        assert gateway.chat(max_tokens=1).status == 200
        time.sleep(0.02)
        if gateway.metrics().sum("huntgroup_attempts_total", replica=name) > len(times):
            times.append(time.monotonic())
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert len(gaps) >= 2 and all(later > 1.5 * earlier for earlier, later in zip(gaps, gaps[1:])), gaps


@case(129, "one phone down does not hide the models")
def test_models_with_a_phone_down(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("refuse")
    for _ in range(4):
        listed = gateway.get("/v1/models")
        assert listed.status == 200 and [m["id"] for m in listed.json()["data"]] == ["tiny"]


# P. Reload and drain

@case(157, "a reload that adds a phone cuts nothing")
@pytest.mark.parametrize("how", ["signal", "admin call"])
def test_reload(row, stage, how):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones[:1])
    phones[0].fault("drip", bytes_per_s=15000)
    with gateway.stream(text=ASK, max_tokens=14) as stream:
        events = stream.events()
        first = next(events)
        gateway.config["replicas"].append(replica(phones[1].url))
        gateway.write_config()
        if how == "signal":
            gateway.process.send(signal.SIGHUP)
        else:
            assert gateway.manage("POST", "/admin/reload").status == 200
        eventually(lambda: (gateway.replica(phones[1].url) or {}).get("state") == "ready", within=10, what="the new phone")
        assert gateway.chat(max_tokens=2).status == 200
        assert phones[1].stats()["completed"] in (1, 2), "ours, and the one by which it is learned whether it carries answers on"
        rest = [first, *events]
    assert rest[-1] == "[DONE]" and web.text_of(rest) == expected_text(ASK, 14)


@case(157, "an invalid reload keeps what runs")
def test_an_invalid_reload(row, stage):
    gateway = stage.gateway(stage.phones(1, model="tiny"))
    gateway.file.write_text(gateway.file.read_text() + "\n[scheduler]\nmax_queud = 3\n")
    answer = gateway.manage("POST", "/admin/reload")
    assert answer.status in (400, 409, 422) and b"max_queud" in answer.body
    gateway.process.send(signal.SIGHUP)
    eventually(lambda: "max_queud" in gateway.process.text(), what="the mistake in the log")
    assert gateway.chat(max_tokens=1).status == 200


@case(159, "a stop under load fails nobody")
def test_sigterm_under_load(row, stage):
    phones = stage.phones(4, model="tiny", slots=4)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("slow", seconds=1)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(gateway.chat, text=f"question {i}", max_tokens=5, stream=i % 2 == 0) for i in range(16)]
        eventually(lambda: in_flight(gateway) == 16, what="sixteen in flight")
        gateway.process.send(signal.SIGTERM)
        assert [a.result().status for a in asked] == [200] * 16
    assert gateway.process.wait(5) == 0


# S. Phones

@case(175, "phones that die at random lose nothing")
def test_random_deaths(row, stage):
    phones = stage.phones(6, model="tiny", slots=1)
    # In turn: the default soon keeps to the phone that stays, and then none dies while it works.
    gateway = stage.gateway(phones, config={"scheduler": {"policy": "round_robin"}})
    for phone in phones[1:]:
        phone.fault("flap", up_s=0.6, down_s=0.3, random=True)

    def ask(i):
        question = f"question {i}"
        return text(gateway.chat(text=question, max_tokens=8)) == expected_text(question, 8)

    assert all(together(150, ask, workers=6))
    assert gateway.metrics().sum("huntgroup_failovers_total") > 0, "no phone died while it worked: the test saw nothing"


@case(179, "a prompt beyond every context is refused at once with the numbers")
def test_beyond_every_context(row, stage):
    phones = stage.phones(2, model="tiny", context=512)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("slow", seconds=5)
    refused = gateway.chat(text="word " * 9000)
    assert refused.status == 400 and refused.error["code"] == "context_length_exceeded"
    assert "512" in refused.error["message"] and refused.seconds < 1
    assert started(phones) == [0, 0]


# What moves, and what creeps

@case(101, "a name that leads elsewhere is followed, also by connections that are in use")
@pytest.mark.skipif(not may_mount(), reason="this system lets nobody mount a file of names")
def test_a_name_that_moves(row, stage, tmp_path):
    """The old phone lives on at the old address, so no connection ever fails."""
    port = free_port()
    old, new = (stage.phones(1, model="tiny", listen=address, base_port=port)[0] for address in ("127.0.0.1", "127.0.0.2"))
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 pixel.test\n")
    gateway = stage.gateway(
        [replica(f"http://pixel.test:{port}")], config={"pool": {"dns_ttl": "1s"}},
        within=["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(names)],
    )

    def asked(phone):
        phone.forget()
        assert text(gateway.chat(text=ASK, max_tokens=2)) == expected_text(ASK, 2)
        return phone.stats()["started"] == 1

    assert asked(old) and not asked(new)
    names.write_text("127.0.0.2 pixel.test\n")
    # Asked all the time, so that no connection is ever idle for long.
    eventually(lambda: asked(new), within=15, what="a request to the new address")
    old.forget()
    for _ in range(20):
        assert asked(new)
    assert old.stats()["started"] == 0


@case(115, "memory does not creep up")
def test_memory_over_rounds(row, stage):
    phones = stage.phones(3, model="tiny", slots=8)
    gateway = stage.gateway(phones)

    def ask(i):
        if i % 4 == 0:
            with gateway.stream(text=f"{ASK} {i}", max_tokens=40) as stream:
                events = stream.events()
                next(events)
                # One in eight leaves.
                return i % 8 == 0 or list(events)[-1] == "[DONE]"
        return gateway.chat(text=f"{ASK} {i}", max_tokens=8).status == 200

    def resident():
        """KiB."""
        status = pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    sizes = []
    for part in range(5):
        assert all(together(600, lambda i: ask(i + 600 * part), workers=16))
        gateway.assert_at_rest()
        sizes.append(resident())
    # The first parts fill what is kept; after them 1,200 more requests may take a KiB each at most.
    assert sizes[-1] - sizes[2] < 1200, sizes


@case(177, "a phone that comes back under another address is the same phone")
def test_a_phone_with_a_new_address(row, stage):
    phones = stage.phones(2, model="tiny", slots=1, speed="0.8b")
    gateway = stage.gateway()

    def add(phone):
        return gateway.manage("POST", "/admin/replicas", {"url": phone.url, "name": "pixel"})

    assert add(phones[0]).status in (200, 201)
    gateway.wait_ready(1).wait_known()
    assert text(gateway.chat(text=ASK, max_tokens=4)) == expected_text(ASK, 4)
    taken = add(phones[1])
    assert taken.status == 409 and "pixel" in taken.error["message"]
    assert gateway.manage("DELETE", "/admin/replicas/pixel?force=true").status < 300
    assert add(phones[1]).status in (200, 201)
    gateway.wait_ready(1)
    answer = gateway.chat(text=ASK, max_tokens=4)
    assert text(answer) == expected_text(ASK, 4) and answer.headers["x-huntgroup-replica"] == "pixel"
    assert [one["url"].rstrip("/") for one in gateway.replicas()] == [phones[1].url]
