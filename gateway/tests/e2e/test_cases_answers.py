"""What users of such gateways report, and the answer ours must give: refusals, usage and tools, secrets, metrics.

The number in a test's id is the report's. See support/cases.py.
"""
import concurrent.futures
import json

import openai
import pytest

from support import http as web
from support.cases import ASK, case, held, sdk, started, together
from support.deadline import eventually
from support.gateway import KEY, replica

# L. Refusals and their shape

@case(131, "full and down are two things")
def test_full_and_down(row, stage):
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones, config={"scheduler": {"max_queued": 1, "no_replica_wait": "0s"}})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = held(gateway, phones, pool, seconds=1)
        second = pool.submit(gateway.chat, text=ASK, max_tokens=2)
        eventually(lambda: gateway.metrics().sum("huntgroup_queue_depth") == 1, what="a full queue")
        full = gateway.chat(text=ASK)
        assert full.status == 503 and full.error["code"] == "queue_full"
        assert [first.result().status, second.result().status] == [200, 200]
    phones[0].fault("refuse")
    eventually(lambda: gateway.get("/readyz").status == 503, within=10, what="not ready")
    down = gateway.chat(text=ASK)
    assert down.status == 503 and down.error["code"] == "no_capacity"
    assert 1 <= float(down.headers["retry-after"]) <= 72


@case(133, "an absurd Retry-After is clamped")
def test_retry_after(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"scheduler": {"no_replica_wait": "0s"}})
    phones[0].fault("status", code=429, retry_after=86400)
    for _ in range(5):
        refused = gateway.chat(text=ASK)
        assert refused.status in (429, 502, 503)
        assert refused.headers["retry-after"] is None or float(refused.headers["retry-after"]) <= 72


@case(135, "the SDK shows every refusal's message")
def test_messages_reach_the_user(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"server": {"max_body": "100KiB"}})
    ask = {"model": "tiny", "messages": [{"role": "user", "content": ASK}]}
    with sdk(gateway, max_retries=0) as client:
        for expected, call in {
            404: lambda: client.moderations.create(input="x"),
            405: lambda: client.models.delete("tiny"),
            413: lambda: client.chat.completions.create(**{**ask, "messages": [{"role": "user", "content": "x" * 200_000}]}),
        }.items():
            with pytest.raises(openai.APIStatusError) as caught:
                call()
            assert caught.value.status_code == expected and "no body" not in str(caught.value) and caught.value.body["message"]
        phones[0].fault("status", code=500)
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**ask)
        assert caught.value.status_code == 502 and caught.value.body["message"]


@case(137, "no page of a tunnel reaches a user")
@pytest.mark.parametrize("status", [200, 403, 404, 502, 503, 530])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_no_html(row, stage, status, streamed):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"scheduler": {"no_replica_wait": "0s"}})
    phones[0].fault("html", status=status)
    answer = gateway.chat(text=ASK, stream=streamed)
    assert answer.status in (502, 503) and answer.error["type"] == "server_error"
    assert b"<" not in answer.body


# M. Usage, tools

@case(139, "usage is recorded and only told when asked")
def test_usage_is_stripped(row, stage):
    gateway = stage.gateway(stage.phones(1, model="tiny"))
    with gateway.stream(text=ASK, max_tokens=9) as stream:
        events = [e for e in stream.events() if isinstance(e, dict)]
    assert all(not e.get("usage") and e["choices"] for e in events)
    eventually(lambda: gateway.metrics().sum("huntgroup_tokens_total", direction="completion") == 9, within=2, what="the record")
    metrics = gateway.metrics()
    assert metrics.sum("huntgroup_tokens_total", direction="prompt") > 0
    assert metrics.sum("huntgroup_usage_estimated_total") == 0


@case(141, "missing usage is estimated and marked")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_missing_usage(row, stage, streamed):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("no_usage")
    gateway.chat(text=ASK, max_tokens=9, stream=streamed)
    eventually(lambda: gateway.metrics().sum("huntgroup_usage_estimated_total") == 1, what="a marked estimate")
    assert 4 <= gateway.metrics().sum("huntgroup_tokens_total", direction="completion") <= 30


TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


@pytest.mark.parametrize("row, fault", [
    pytest.param(143, "no_index_tool_calls", id="143-tool-calls-without-index"), pytest.param(145, "empty_arguments", id="145-empty-arguments"),
])
def test_odd_tool_calls(row, fault, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    ask = {"model": "tiny", "messages": [{"role": "user", "content": ASK}], "tools": TOOLS, "tool_choice": "required"}
    with sdk(gateway, max_retries=0) as client:
        whole = client.chat.completions.create(**ask).choices[0].message.tool_calls
        phones[0].fault(fault)
        arguments, name = "", ""
        for chunk in client.chat.completions.create(**ask, stream=True):
            for call in (c for choice in chunk.choices for c in choice.delta.tool_calls or []):
                name += (call.function.name or "") if call.function else ""
                arguments += (call.function.arguments or "") if call.function else ""
    assert whole and (name, arguments) == (whole[0].function.name, whole[0].function.arguments)
    json.loads(arguments)


# N. Secrets

@case(147, "the caller's credentials stay here, the phone gets its own")
def test_credentials(row, stage):
    phones = stage.phones(1, model="tiny", api_key="sk-phone-0123456789")
    gateway = stage.gateway([replica(phones[0].url, api_key="env:E2E_PHONE_KEY")])
    headers = {"proxy-authorization": "Basic c2VjcmV0", "cookie": "session=secret", "x-api-key": "sk-caller", "connection": "x-custom", "x-custom": "1"}
    assert gateway.chat(max_tokens=1, headers=headers).status == 200
    seen = {name.lower(): value for name, value in phones[0].requests()[-1]["headers"]}
    assert seen["authorization"] == "Bearer sk-phone-0123456789"
    assert not {"proxy-authorization", "cookie", "x-api-key", "x-custom"} & set(seen)
    assert KEY not in str(seen)


@case(149, "user and password of an address show nowhere")
def test_userinfo(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    url = phones[0].url.replace("http://", "http://operator:hunter2@")
    refused = gateway.manage("POST", "/admin/replicas", {"url": url})
    assert refused.status == 400 and b"hunter2" not in refused.body
    shown = gateway.manage("GET", "/admin/replicas").body + web.request("GET", gateway.admin + "/metrics").body
    assert b"hunter2" not in shown and "hunter2" not in gateway.process.text()


# O. Metrics

@case(151, "invented models make no series")
def test_series_are_bounded(row, stage):
    gateway = stage.gateway(stage.phones(1, model="tiny", slots=8))
    assert gateway.chat(max_tokens=1).status == 200 and gateway.chat(model="invented-0").status == 404
    # A request is counted after its answer has gone out: the first refusal brings the series of all that follow.
    eventually(lambda: gateway.metrics().sum("huntgroup_requests_total") >= 2, within=5, what="the records of both requests")
    before = len(gateway.metrics().samples)
    statuses = together(500, lambda i: gateway.chat(model=f"invented-{i}").status, workers=8)
    assert set(statuses) == {404}
    assert len(gateway.metrics().samples) <= before + 5
    assert not any("invented" in v for s in gateway.metrics().samples for v in s.labels.values())


@case(153, "a request counts once")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_request_counts_once(row, stage, streamed):
    phones = stage.phones(2, model="tiny", slots=4)
    gateway = stage.gateway(phones, config={"health": {"soft_failures": 100, "min_samples": 1000}})
    phones[0].fault("status", code=500, next=10)
    together(100, lambda i: gateway.chat(text=ASK, max_tokens=3, stream=streamed), workers=6)
    eventually(lambda: gateway.metrics().sum("huntgroup_requests_total") >= 100, within=2, what="the last request's record")
    metrics = gateway.metrics()
    assert metrics.sum("huntgroup_requests_total") == 100 == metrics.sum("huntgroup_requests_total", outcome="ok")
    assert metrics.sum("huntgroup_request_duration_seconds_count") == 100
    assert metrics.sum("huntgroup_attempts_total") == sum(started(phones)) == 110
    assert metrics.sum("huntgroup_tokens_total", direction="completion") == 300
