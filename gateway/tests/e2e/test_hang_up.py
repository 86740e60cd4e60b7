"""A client hangs up: in the queue, while its prompt is read, in the middle of its answer. Its slot is free at once, nobody else notices."""
import openai
import pytest

from support.deadline import eventually

LONG = "hand picture again change " * 850


@pytest.fixture
def engine(stage):
    # Small batches: an engine looks up from a prompt only between two of them.
    return stage.llama(model="slow", slots=1, batch=128)


@pytest.fixture
def gateway(stage, engine):
    # The engine looks for a departed client once a second, and each question about its slots puts that off: probe rarely.
    return stage.gateway([engine], config={"health": {"interval": "10s"}})


def busy_slots(gateway):
    return gateway.metrics().sum("huntgroup_replica_slots", state="busy")


def test_in_the_middle_of_a_stream(gateway, engine):
    with gateway.stream("slow", max_tokens=3000, temperature=0) as stream:
        events = stream.events()
        for _ in range(5):
            next(events)
    eventually(lambda: busy_slots(gateway) == 0, within=1, what="the slot's return")
    eventually(lambda: engine.busy() == 0, within=3, what="the engine's end of work", every=1.0)
    assert gateway.chat("slow", max_tokens=2).status == 200


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_while_the_prompt_is_read(gateway, engine, streamed):
    link = gateway.stream("slow", text=LONG, max_tokens=50)
    if not streamed:
        link.close()
        link = plain_request(gateway, LONG)
    eventually(lambda: engine.busy() == 1, within=10, what="the engine at work")
    link.close()
    eventually(lambda: gateway.metrics().sum("huntgroup_requests_in_flight") == 0, within=1, what="the request's end")
    eventually(lambda: engine.busy() == 0, within=6, what="the engine's end of work", every=1.5)
    assert gateway.metrics().sum("huntgroup_requests_total", outcome="client_gone") >= 1


def plain_request(gateway, text):
    import json

    from support.http import connection

    link, _ = connection(gateway.url, 60)
    body = json.dumps({"model": "slow", "messages": [{"role": "user", "content": text}], "max_tokens": 2000}).encode()
    link.request("POST", "/v1/chat/completions", body=body, headers={**gateway.headers(), "content-type": "application/json"})
    return link


def test_while_it_waits_in_the_queue(gateway, engine):
    with gateway.stream("slow", max_tokens=300, temperature=0) as running:
        events = running.events()
        next(events)
        waiting = plain_request(gateway, "say some words")
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 1, what="a request in the queue")
        waiting.close()
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 0, within=1, what="an empty queue")
        assert list(events)[-1] == "[DONE]", "the neighbour's answer was cut"
    assert gateway.metrics().sum("huntgroup_attempts_total") == 1, "the departed request was run all the same"


def test_the_sdk_closes_a_stream_early_and_goes_on(gateway, engine):
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0) as client:
        for _ in range(5):
            with client.chat.completions.create(
                model="slow", messages=[{"role": "user", "content": "say"}], max_tokens=2000, stream=True
            ) as stream:
                for i, _ in enumerate(stream):
                    if i == 3:
                        break
        answer = client.chat.completions.create(model="slow", messages=[{"role": "user", "content": "say"}], max_tokens=3)
    assert answer.usage.completion_tokens == 3


def test_a_read_timeout_of_the_client_is_a_hang_up(gateway, engine):
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="slow", messages=[{"role": "user", "content": LONG}], max_tokens=100)
    eventually(lambda: busy_slots(gateway) == 0, within=1, what="the slot's return")
