"""A real engine is killed while it works: who was promised an answer gets it from another, once and whole.

What another engine makes of an answer that has begun is the subject of test_continuation.py; here nobody may carry one on.
"""
import concurrent.futures
import signal

import openai
import pytest

from support import http
from support.deadline import eventually

# Every word is one token of the model. Reading this takes the slow model several seconds: time enough to die in.
LONG = "hand picture again change " * 850
ASK = {"model": "slow", "messages": [{"role": "user", "content": LONG}], "max_tokens": 12, "temperature": 0}


@pytest.fixture
def pair(stage):
    return [stage.llama(model="slow", slots=1, batch=128) for _ in range(2)]


@pytest.fixture
def gateway(stage, pair):
    return stage.gateway(pair)


@pytest.fixture
def alone(stage, pair):
    """A gateway whose answers nobody carries on."""
    return stage.gateway(pair, config={"streams": {"continue": "never"}})


def client_of(gateway):
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=120)


def ask(gateway, stream):
    with client_of(gateway) as client:
        if not stream:
            answer = client.chat.completions.with_raw_response.create(**ASK)
            parsed = answer.parse()
            assert answer.headers["x-huntgroup-attempts"] == "2"
            return parsed.choices[0].message.content, parsed.choices[0].finish_reason
        chunks = list(client.chat.completions.create(**ASK, stream=True))
        assert len({c.id for c in chunks}) == 1
        finish = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        assert len(finish) == 1
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), finish[0]


def the_busy_one(pair):
    return eventually(lambda: next((e for e in pair if e.process.alive and e.busy()), None), within=10, what="an engine at work")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_an_engine_killed_while_it_reads_costs_the_client_nothing(gateway, pair, stream):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, gateway, stream)
        victim = the_busy_one(pair)
        victim.kill()
        text, finish = answer.result(timeout=120)
    survivor = next(e for e in pair if e is not victim)
    direct = survivor.post("/v1/chat/completions", ASK).json()["choices"][0]
    assert (text, finish) == (direct["message"]["content"], direct["finish_reason"])
    assert gateway.metrics().sum("huntgroup_failovers_total") == 1


def test_an_engine_killed_while_it_writes_ends_the_stream_with_an_error_never_cleanly(alone, pair):
    with alone.stream("slow", max_tokens=400, temperature=0) as stream:
        seen = stream.events()
        first = [next(seen) for _ in range(3)]
        the_busy_one(pair).kill()
        rest = []
        with pytest.raises((http.http.client.HTTPException, OSError)):
            rest.extend(seen_until_cut(seen, rest))
    assert first and "error" in rest[-1], rest[-1:]
    assert set(rest[-1]["error"]) == {"message", "type", "param", "code"}
    assert "[DONE]" not in rest and not http.finish_of(rest)


def seen_until_cut(events, into):
    for event in events:
        into.append(event)
    return []


def test_the_sdk_raises_when_an_engine_is_killed_while_it_writes(alone, pair):
    with client_of(alone) as client, pytest.raises(openai.APIError):
        for i, _ in enumerate(client.chat.completions.create(**{**ASK, "max_tokens": 400}, stream=True)):
            if i == 3:
                the_busy_one(pair).kill()


def test_a_dead_engine_is_left_alone_and_used_again_when_it_is_back(stage, gateway, pair):
    pair[0].kill()
    for _ in range(6):
        assert gateway.chat("slow", max_tokens=2).status == 200
    eventually(lambda: gateway.replica(pair[0].url)["state"] == "out", what="the dead engine's ejection")
    assert gateway.get("/v1/models/slow").status == 200
    stage.llama(model="slow", slots=1, batch=128, port=pair[0].port)

    def back():
        # Probation ends with good answers, so there must be requests.
        assert gateway.chat("slow", max_tokens=2).status == 200
        return gateway.replica(pair[0].url)["state"] == "ready"

    eventually(back, within=15, what="the engine's return")


def test_when_all_engines_are_dead_the_answer_says_so_and_when_to_come_back(gateway, pair):
    for engine in pair:
        engine.kill()
    eventually(lambda: gateway.get("/readyz").status == 503, within=10, what="not ready")
    assert gateway.get("/healthz").status == 200
    assert gateway.get("/v1/models").status == 200
    assert {m["id"] for m in gateway.get("/v1/models").json()["data"]} >= {"slow"}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_stopped_engine_is_not_a_dead_request(stage, pair, stream):
    """SIGSTOP is what a phone that sleeps looks like: the socket is open and silent. A deadline moves the request on."""
    gateway = stage.gateway(pair, config={"streams": {"first_token_min": "2s", "first_token_cap": "2s", "plain_total": "2s"}})
    pair[0].process.send(signal.SIGSTOP)

    def ask(_):
        answer = gateway.chat("slow", text=LONG[:400], max_tokens=4, temperature=0, stream=stream)
        return answer.status, (b"[DONE]" if stream else b'"usage"') in answer.body

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(ask, range(2))) == [(200, True)] * 2
