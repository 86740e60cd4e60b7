"""What users of such gateways report, and the answer ours must give: clients that give up and come back.

The number in a test's id is the report's. See support/cases.py.
"""
import concurrent.futures
import uuid

import openai
import pytest

from support.cases import ASK, case, sdk, started, together
from support.deadline import eventually
from support.phones import expected_text

MESSAGES = [{"role": "user", "content": ASK}]


def joined(gateway):
    return gateway.metrics().sum("huntgroup_joined_requests_total")


def key():
    return {"Idempotency-Key": str(uuid.uuid4())}


@case(27, "of two that joined, the second finishes when the first is killed")
def test_a_waiter_outlives_the_first(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("slow", seconds=3)
    ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "extra_headers": key()}
    with concurrent.futures.ThreadPoolExecutor() as pool, sdk(gateway, max_retries=0) as client:
        first = pool.submit(client.with_options(timeout=1).chat.completions.create, **ask)
        eventually(lambda: sum(phone.stats()["running_now"] for phone in phones) == 1, what="the phone at work")
        second = pool.submit(client.chat.completions.create, **ask)
        with pytest.raises(openai.APITimeoutError):
            first.result()
        assert second.result().choices[0].message.content == expected_text(ASK, 6)
    assert sum(started(phones)) == 1 and joined(gateway) == 1


@case(37, "a client that gives up six times costs one phone one answer")
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_offers_the_same_again_and_again(row, stage, stream):
    phones = stage.phones(3, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"head_after": "30s"}})
    for phone in phones:
        phone.fault("slow", seconds=6)
    with sdk(gateway, max_retries=10, timeout=0.7) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=6, extra_headers=key(), stream=stream
        )
        if stream:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            said = answer.choices[0].message.content
    assert said == expected_text(ASK, 6)
    assert sum(started(phones)) == 1, "one upstream call"
    assert joined(gateway) >= 3 and gateway.metrics().sum("huntgroup_client_retries_total") == joined(gateway)


@case(41, "the SDK's retry after its time-out joins without a key where the operator wants that")
def test_a_retry_joins_the_running_prefill(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones, config={"idempotency": {"join_by_body": "retries"}})
    for phone in phones:
        phone.fault("slow", seconds=4)
    with sdk(gateway, max_retries=8, timeout=1) as client:
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6)
    assert answer.choices[0].message.content == expected_text(ASK, 6)
    assert sum(started(phones)) == 1 and joined(gateway) >= 1
    for phone in phones:
        phone.heal()
    # The same question, and no retry: it is asked anew.
    with sdk(gateway) as client:
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6)
    assert sum(started(phones)) == 2


@case(155, "a retry of a lost request is known as such before the limits")
def test_a_retry_is_no_further_request(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"limits": {"requests_per_minute": 1}})
    phones[0].fault("slow", seconds=3)
    lost = key()
    with sdk(gateway, max_retries=0, timeout=1) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6, extra_headers=lost)
    with sdk(gateway, max_retries=0) as client:
        ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6}
        answers = together(3, lambda _: client.chat.completions.create(**ask, extra_headers=lost))
        assert {answer.choices[0].message.content for answer in answers} == {expected_text(ASK, 6)}
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**ask, extra_headers=key())
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.chat.completions.create(**{**ask, "max_tokens": 7}, extra_headers=lost)
    assert caught.value.code == "idempotency_key_reused"
    assert started(phones) == [1]
