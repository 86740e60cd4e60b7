"""What users of such gateways report, and the answer ours must give: counting, hang-ups, the queue.

The number in a test's id is the report's. See support/cases.py.
"""
import concurrent.futures
import json
import time

import pytest

from support import http as web
from support.cases import ASK, busy, case, held, in_flight, started, text, together
from support.deadline import eventually
from support.gateway import KEY
from support.phones import expected_text
from support.rawhttp import Raw, head

# A. Counting requests in flight

@case(1, "gauges are 0 after a thousand requests of all kinds")
def test_counts(row, stage):
    phones = stage.phones(3, model="tiny", slots=4)
    gateway = stage.gateway(phones)
    phones[0].fault("status", code=500, next=20)
    phones[1].fault("cut_after", chunks=2, next=20)

    def ask(i):
        if i % 10 == 0:
            return gateway.chat(model="nobody").status
        if i % 10 == 1:
            with gateway.stream(text=ASK, max_tokens=50) as stream:
                next(stream.events(), None)   # and leaves
            return 0
        return gateway.chat(text=ASK, max_tokens=4).status

    statuses = together(1000, ask, workers=24)
    assert statuses.count(404) == 100 and statuses.count(200) == 800
    assert all(s.value >= 0 for s in gateway.metrics().samples), "a gauge or counter below zero"
    gateway.assert_at_rest()


@case(3, "equal phones share the work")
def test_equal_phones(row, stage):
    phones = stage.phones(3, model="tiny")
    gateway = stage.gateway(phones)
    for _ in range(90):
        assert gateway.chat(max_tokens=1).status == 200
    assert all(20 <= count <= 40 for count in started(phones)), started(phones)


@case(5, "a phone filled over one route is full for the others")
@pytest.mark.parametrize("path, body", [
    ("/v1/responses", {"input": "hi"}), ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
    ("/v1/completions", {"prompt": "hi"}), ("/v1/embeddings", {"input": "hi"}),
], ids=["responses", "messages", "completions", "embeddings"])
def test_every_route_counts(row, stage, path, body):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("slow", seconds=3, next=1)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        held = pool.submit(gateway.post, path, {"model": "tiny", **body})
        taken = eventually(lambda: [p for p in phones if p.stats()["running_now"]], what="a phone at work")[0]
        other = next(p for p in phones if p is not taken)
        other.heal()
        for _ in range(4):
            assert gateway.chat(max_tokens=1).status == 200
        assert taken.stats()["started"] == 1 and other.stats()["started"] == 4
        assert held.result().status == 200


@case(7, "a stream holds its slot to its end")
def test_a_stream_counts_to_its_end(row, stage):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("hang_after", chunks=2, next=1)
    with gateway.stream(text=ASK, max_tokens=50) as stream:
        next(stream.events())
        taken = eventually(lambda: [p for p in phones if p.stats()["running_now"]], what="a phone at work")[0]
        other = next(p for p in phones if p is not taken)
        other.heal()
        for _ in range(10):
            assert gateway.chat(max_tokens=1).status == 200
        assert taken.stats()["started"] == 1 and other.stats()["started"] == 10
        assert taken.stats()["over_subscribed"] == 0


@case(9, "a hang-up at the very last chunk counts once")
def test_release_is_idempotent(row, stage):
    gateway = stage.gateway(stage.phones(1, model="tiny", slots=4))

    def ask(i):
        with gateway.stream(text=ASK, max_tokens=3) as stream:
            for event in stream.events():
                if i % 3 == 0 and web.finish_of([event]) or i % 3 == 1 and event == "[DONE]":
                    return
            # and every third reads to the end

    together(300, ask, workers=8)
    gateway.assert_at_rest()
    metrics = gateway.metrics()
    assert metrics.sum("huntgroup_requests_total") == 300
    assert all(s.value >= 0 for s in metrics.samples)


@case(11, "a request that runs for minutes is never forgotten")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_no_sweeper(row, stage, streamed):
    """The gateway lives sixty times as fast: the phone is silent for seven of its minutes."""
    phones = stage.phones(1, model="tiny", slots=1)
    minute = "1m"
    gateway = stage.gateway(phones, flags=["--clock-pace", "60"], config={
        "pool": {"connect_timeout": minute, "tls_timeout": minute}, "health": {"interval": minute, "timeout": minute},
        "streams": {"first_token_min": "25m", "head_after": "10s"},
    })
    phones[0].fault("slow", seconds=7, next=1)
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool, gateway.stream(text=ASK, max_tokens=6, stream=streamed) as stream:
        eventually(lambda: phones[0].stats()["running_now"] == 1, what="the phone at work")
        other = pool.submit(gateway.chat, text="beta", max_tokens=2)

        def silent():
            seen = in_flight(gateway) >= 1 and busy(gateway) == 1
            stats = phones[0].stats()
            # What was seen counts if the phone was silent after it.
            assert seen and stats["peak_in_flight"] == 1 or stats["completed"], "the request was forgotten"
            return not stats["completed"]

        while silent():
            pass
        assert time.monotonic() - begun > 6, "six minutes of the gateway's"
        if streamed:
            assert web.text_of(stream.events()) == expected_text(ASK, 6)
        else:
            assert stream.head() == 200
        assert text(other.result()) == expected_text("beta", 2)
    assert started(phones) == [2]


@case(13, "a client that never reads loses its slot")
def test_a_stalled_reader_is_cut(row, stage):
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones, config={"server": {"write_timeout": "1s"}})
    phones[0].fault("endless_stream", next=1)
    body = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x" * 60}], "max_tokens": 1000000}).encode()
    with Raw(gateway.url) as link:
        link.send(head("POST", "/v1/chat/completions", [("Authorization", f"Bearer {KEY}"), ("Content-Length", len(body))]) + body)
        eventually(lambda: busy(gateway) == 1, what="a busy slot")
        eventually(lambda: busy(gateway) == 0, within=15, what="the slot's return")
    assert gateway.chat(max_tokens=1).status == 200


# B. Clients that leave

@case(15, "a hang-up reaches the phone at once")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_hang_up_reaches_the_phone(row, stage, phase, streamed):
    if phase == "decode" and not streamed:
        phase = "plain decode"
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    phones[0].fault("slow" if phase == "prefill" else "head_then_silence", seconds=20)
    delays = []
    for i in range(1, 11):
        stream = gateway.stream(text=ASK, max_tokens=20, stream=streamed)
        eventually(lambda: phones[0].stats()["running_now"] == 1, what="the phone at work")
        left = time.time()
        stream.close()
        eventually(lambda: phones[0].stats()["cancelled"] == i, within=1, what="the hang-up at the phone", every=0.005)
        delays.append(phones[0].stats()["last_cancel"]["unix_s"] - left)
        eventually(lambda: busy(gateway) == 0, within=1, what="the slot's return")
    assert sorted(delays)[5] < 0.05, f"median over 50 ms: {delays}"
    assert gateway.metrics().sum("huntgroup_requests_total", outcome="client_gone") == 10


@case(17, "a phone that reads on after a hang-up gets nothing until it is done")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_a_deaf_prefill(row, stage, streamed):
    phones = stage.phones(1, model="tiny", slots=1, speed="0.8b")
    gateway = stage.gateway(phones)
    phones[0].fault("ignore_cancel", next=1)
    stream = gateway.stream(text="alpha " * 1200, max_tokens=20, stream=streamed)
    eventually(lambda: phones[0].stats()["running_now"] == 1, what="the phone at work")
    stream.close()
    eventually(lambda: in_flight(gateway) == 0, what="the end of the request")
    lingers = gateway.metrics().sum("huntgroup_replica_slots", state="lingering")
    assert (lingers, phones[0].stats()["running_now"]) == (1, 1)
    assert text(gateway.chat(text=ASK, max_tokens=4)) == expected_text(ASK, 4)
    stats = phones[0].stats()
    assert (stats["started"], stats["peak_in_flight"], stats["over_subscribed"], stats["waited"]) == (2, 1, 0, 0), stats


@case(19, "a hang-up ends nobody else's answer")
def test_a_hang_up_is_private(row, stage):
    phones = stage.phones(1, model="tiny", slots=2)
    gateway = stage.gateway(phones)
    phones[0].fault("drip", bytes_per_s=15000)
    with gateway.stream(text=ASK, max_tokens=10) as stays:
        events = stays.events()
        first = next(events)
        with gateway.stream(text="another question", max_tokens=30) as leaves:
            next(leaves.events())
        rest = [first, *events]
    assert rest[-1] == "[DONE]" and web.text_of(rest) == expected_text(ASK, 10)


@case(23, "a phone that a hang-up kills is taken out, and others serve")
def test_a_phone_that_dies_of_a_hang_up(row, stage):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    phones[0].fault("crash_on_abort")
    for _ in range(4):
        with gateway.stream(text=ASK, max_tokens=5000) as stream:
            next(stream.events())
    for _ in range(6):
        assert text(gateway.chat(text=ASK, max_tokens=6)) == expected_text(ASK, 6)


@case(25, "a pipelined request is not a hang-up")
def test_pipelining_is_not_leaving(row, stage):
    phones = stage.phones(1, model="tiny", slots=2)
    gateway = stage.gateway(phones)
    phones[0].fault("slow", seconds=0.5)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": ASK}], "max_tokens": 4}).encode()
    sent = head("POST", "/v1/chat/completions", [("Authorization", f"Bearer {KEY}"), ("Content-Length", len(body))]) + body
    with Raw(gateway.url) as link:
        link.send(sent)
        eventually(lambda: phones[0].stats()["running_now"] == 1, what="the first at work")
        link.send(sent)
        assert [link.answer().status for _ in range(2)] == [200, 200]
    assert phones[0].stats()["cancelled"] == 0


# C. The queue

QUEUE = {"scheduler": {"max_queued": 4, "max_age_standard": "1s"}}


@case(29, "waiters that timed out leave the queue")
def test_timed_out_waiters_leave(row, stage):
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones, config=QUEUE)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = held(gateway, phones, pool, seconds=4)
        late = [pool.submit(gateway.chat, text=ASK, max_tokens=2) for _ in range(4)]
        for answer in late:
            assert answer.result().status in (503, 504), answer.result()
        assert gateway.metrics().sum("huntgroup_queue_depth") == 0
        again = pool.submit(gateway.chat, text=ASK, max_tokens=2)
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 1, within=0.9, what="a new waiter")
        assert again.result().status in (200, 503, 504) and first.result().status == 200


@case(33, "a full queue says its limit")
def test_a_full_queue_says_its_limit(row, stage):
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones, config={"scheduler": {"max_queued": 4}})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = held(gateway, phones, pool, seconds=2)
        waiting = [pool.submit(gateway.chat, text=ASK, max_tokens=2) for _ in range(4)]
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 4, what="a full queue")
        refused = gateway.chat(text=ASK, max_tokens=2)
        assert refused.status == 503 and refused.error["code"] == "queue_full"
        assert "4" in refused.error["message"]
        assert 1 <= float(refused.headers["retry-after"]) <= 72
        assert refused.seconds < 0.5
        assert [w.result().status for w in (first, *waiting)] == [200] * 5
    assert gateway.metrics().sum("huntgroup_shed_total", reason="queue_full") == 1


@case(35, "who left the queue is never run")
def test_the_departed_are_not_run(row, stage):
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = held(gateway, phones, pool, seconds=2)
        gone = [gateway.stream(text=ASK) for _ in range(5)]
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 5, what="five waiters")
        for stream in gone:
            stream.close()
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 0, within=1, what="an empty queue")
        assert first.result().status == 200
    assert gateway.chat(text=ASK, max_tokens=2).status == 200
    assert started(phones) == [2]
