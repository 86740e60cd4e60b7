"""Traces: one span a request and one an attempt, as a collector reads them; and what happens when there is no collector."""
import json
import time

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Proto
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from support.collector import Collector
from support.deadline import eventually
from support.gateway import replica

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET_WORDS = "the moon is made of green cheese"


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.stop()


def traced(stage, phones, collector, **telemetry):
    entries = [replica(phone.url) for phone in phones]
    return stage.gateway(entries, config={"telemetry": {"otlp_endpoint": collector.url, **telemetry}})


def of(kind, **wanted):
    return lambda span: span.kind == kind and all(span[name.replace("__", ".")] == value for name, value in wanted.items())


def test_a_request_and_its_attempt_are_spans_of_one_trace(stage, collector):
    gateway = traced(stage, stage.phones(1, model="tiny"), collector)
    before = time.time_ns()
    answer = gateway.chat(text=SECRET_WORDS, max_tokens=6)
    assert answer.status == 200
    request, = collector.await_spans(of(Proto.SPAN_KIND_SERVER))
    attempt, = collector.await_spans(of(Proto.SPAN_KIND_CLIENT))
    assert (request.name, attempt.name) == ("chat tiny", "chat tiny")
    assert attempt.trace == request.trace and attempt.parent == request.id and request.parent == ""
    assert before <= request.began <= attempt.began <= attempt.ended <= request.ended <= time.time_ns()
    usage = answer.json()["usage"]
    assert request["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert request["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 6
    assert request["http.route"] == "/v1/chat/completions" and request["http.response.status_code"] == 200
    assert request["huntgroup.request_id"] == answer.headers["x-request-id"] and request["huntgroup.tenant"] == "e2e"
    assert attempt["huntgroup.replica"] == answer.headers["x-huntgroup-replica"]
    assert attempt["server.address"] == "127.0.0.1" and attempt["huntgroup.outcome"] == "ok"
    assert request.status.code == attempt.status.code == Status.STATUS_CODE_UNSET
    resource, = collector.requests()[0].resource_spans
    named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert named["service.name"] == "huntgroup" and named["service.instance.id"]
    path, headers = collector.deliveries[0]
    assert path == "/v1/traces" and headers["content-type"] == "application/json"
    said = b"".join(collector.bodies)
    assert SECRET_WORDS.encode() not in said and gateway.key.encode() not in said and b"cheese" not in said


def test_a_streams_first_token_is_an_event(stage, collector):
    gateway = traced(stage, stage.phones(1, model="tiny"), collector)
    with gateway.stream(max_tokens=6) as stream:
        assert stream.head() == 200 and list(stream.events())[-1] == "[DONE]"
    request, = collector.await_spans(of(Proto.SPAN_KIND_SERVER))
    assert request.began < request.events["first_token"] <= request.ended


def test_the_callers_trace_goes_on_and_its_decision_holds(stage, collector):
    gateway = traced(stage, stage.phones(1, model="tiny"), collector, trace_sample=0.0)
    assert gateway.chat(text="nobody wants this traced").status == 200
    head = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    assert gateway.chat(text="this one is", headers=head).status == 200
    assert gateway.chat(text="and this is not", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}).status == 200
    assert gateway.chat(text="nor that", headers={"traceparent": "nonsense"}).status == 200
    request, = collector.await_spans(of(Proto.SPAN_KIND_SERVER))
    assert (request.trace, request.parent, request.state) == (TRACE, PARENT, "vendor=1")
    assert {span.trace for span in collector.spans()} == {TRACE}
    line = next(line for line in gateway.process.tail(200).splitlines() if TRACE in line)
    assert "trace_id" in line, "the log line of a traced request names its trace"


def test_each_attempt_has_a_span_with_what_became_of_it(stage, collector):
    phones = stage.phones(2, model="tiny")
    gateway = traced(stage, phones, collector)
    for phone in phones:
        phone.fault("reset_before_head", next=1, on="work")
    assert gateway.chat(text="twice in vain", max_tokens=4).status in (200, 502)
    request, = collector.await_spans(of(Proto.SPAN_KIND_SERVER))
    attempts = collector.await_spans(lambda span: span.kind == Proto.SPAN_KIND_CLIENT)
    assert len(attempts) == request["huntgroup.attempts"] >= 2
    failed = [span for span in attempts if span["huntgroup.outcome"] != "ok"]
    assert failed and all(span.status.code == Status.STATUS_CODE_ERROR and span["error.type"] for span in failed)
    assert sorted(span["huntgroup.attempt"] for span in attempts) == list(range(1, len(attempts) + 1))


def test_a_refused_request_is_a_span_that_says_why(stage, collector):
    gateway = traced(stage, stage.phones(1, model="tiny"), collector)
    assert gateway.chat(model="unknown-model").status == 404
    request, = collector.await_spans(of(Proto.SPAN_KIND_SERVER))
    assert request["error.type"] == "client_error" and request.status.code == Status.STATUS_CODE_ERROR
    assert request["http.response.status_code"] == 404
    assert "unknown-model" not in json.dumps(request.attributes), "a name that a client made up is no attribute"


def test_a_collector_that_refuses_or_is_gone_holds_nobody_up(stage, collector):
    gateway = traced(stage, stage.phones(1, model="tiny"), collector)
    collector.status = 400
    assert gateway.chat(max_tokens=2).status == 200
    eventually(lambda: gateway.metrics().sum("huntgroup_trace_spans_total", outcome="lost") >= 2, within=15, what="lost spans")
    collector.stop()
    for _ in range(5):
        assert gateway.chat(max_tokens=2, timeout=5).status == 200
    lost = [line for line in gateway.process.tail(200).splitlines() if "does not take spans" in line]
    assert len(lost) == 1, "it is said once"


def test_what_is_left_is_sent_before_the_process_ends(stage, collector):
    gateway = traced(stage, stage.phones(1, model="tiny"), collector)
    assert gateway.chat(max_tokens=2).status == 200
    gateway.stop()
    assert len(collector.spans()) == 2


def test_headers_with_a_credential_go_along(stage, collector, monkeypatch):
    monkeypatch.setenv("E2E_OTLP_HEADERS", "authorization=Basic%20c2VjcmV0,x-scope=phones")
    gateway = traced(stage, stage.phones(1, model="tiny"), collector, otlp_headers="env:E2E_OTLP_HEADERS", service_name="pool-7")
    assert gateway.chat(max_tokens=2).status == 200
    collector.await_spans(lambda span: True)
    _, headers = collector.deliveries[0]
    assert headers["authorization"] == "Basic c2VjcmV0" and headers["x-scope"] == "phones"
    assert "c2VjcmV0" not in gateway.process.tail(400)
