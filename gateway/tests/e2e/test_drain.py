"""Drain: what runs is finished, nothing new is started; a replica's by the admin API, the gateway's by SIGTERM."""
import concurrent.futures
import time

import pytest

from support import http
from support.deadline import eventually


@pytest.fixture
def pair(stage):
    return [stage.llama(model="slow", slots=1) for _ in range(2)]


@pytest.fixture
def gateway(stage, pair):
    return stage.gateway(pair)


def begin(gateway, tokens=150):
    """A stream that has begun: the stream and its events."""
    stream = gateway.stream("slow", max_tokens=tokens, temperature=0)
    assert stream.head() == 200
    events = stream.events()
    return stream, events, [next(events)]


def test_a_drained_replica_finishes_its_stream_and_gets_nothing_new(gateway, pair):
    stream, events, seen = begin(gateway)
    with stream:
        busy = stream.headers["x-huntgroup-replica"]
        drained = gateway.manage("POST", f"/admin/replicas/{busy}/drain")
        assert drained.status in (200, 202), drained
        assert next(r for r in gateway.replicas() if r["name"] == busy)["state"] == "draining"
        for _ in range(4):
            answer = gateway.chat("slow", max_tokens=2)
            assert answer.status == 200 and answer.headers["x-huntgroup-replica"] != busy
        seen += events
    assert seen[-1] == "[DONE]" and http.finish_of(seen) == ["length"]
    assert gateway.manage("POST", f"/admin/replicas/{busy}/undrain").status in (200, 202)
    eventually(lambda: next(r for r in gateway.replicas() if r["name"] == busy)["state"] == "ready", what="the replica's return")
    used = {gateway.chat("slow", max_tokens=2).headers["x-huntgroup-replica"] for _ in range(6)}
    assert busy in used


def test_a_removed_replica_finishes_its_stream_first(gateway, pair):
    stream, events, seen = begin(gateway)
    with stream:
        busy = stream.headers["x-huntgroup-replica"]
        removed = gateway.manage("DELETE", f"/admin/replicas/{busy}")
        assert removed.status in (200, 202, 204), removed
        seen += events
    assert seen[-1] == "[DONE]"
    eventually(lambda: busy not in {r["name"] for r in gateway.replicas()}, what="the replica's removal")
    assert gateway.chat("slow", max_tokens=2).status == 200


def test_a_replica_added_while_streams_run_is_used_and_cuts_nothing(stage, gateway, pair):
    # They run until the third is there.
    begun = [begin(gateway, tokens=1200) for _ in pair]
    third = stage.llama(model="slow", slots=1)
    added = gateway.manage("POST", "/admin/replicas", {"url": third.url})
    assert added.status in (200, 201), added
    again = gateway.manage("POST", "/admin/replicas", {"url": third.url})
    assert again.status == 200, "adding is idempotent by address"
    assert sum(1 for r in gateway.replicas() if r["url"].rstrip("/") == third.url) == 1
    eventually(lambda: gateway.replica(third.url)["state"] == "ready", within=10, what="the new replica")
    answer = gateway.chat("slow", max_tokens=2)
    assert answer.headers["x-huntgroup-replica"] == gateway.replica(third.url)["name"]
    for stream, events, seen in begun:
        with stream:
            assert (seen + list(events))[-1] == "[DONE]"


def test_sigterm_finishes_streams_and_leaves_at_once_after_the_last(gateway, pair):
    stream, events, seen = begin(gateway, tokens=200)
    with stream, concurrent.futures.ThreadPoolExecutor() as pool:
        leaving = pool.submit(gateway.process.stop, 30)
        seen += events
        ended = time.monotonic()
        took, code = leaving.result(timeout=30)
    assert seen[-1] == "[DONE]" and http.finish_of(seen) == ["length"]
    assert code == 0
    assert time.monotonic() - ended < 20, "the process outlived its last stream"


def test_sigterm_with_nothing_in_flight_leaves_at_once(gateway):
    took, code = gateway.stop()
    assert code == 0 and took < 3


def test_what_the_admin_api_added_survives_a_kill(stage, gateway):
    third = stage.llama(model="tiny")
    assert gateway.manage("POST", "/admin/replicas", {"url": third.url, "labels": {"shelf": "upper"}}).status in (200, 201)
    gateway.process.kill()
    gateway.start()
    eventually(lambda: (gateway.replica(third.url) or {}).get("state") == "ready", within=10, what="the stored replica")
    assert gateway.replica(third.url)["labels"] == {"shelf": "upper"}
    assert gateway.chat("tiny", max_tokens=2).status == 200
