"""What users of such gateways report, and the answer ours must give: deadlines, keep-alive, event streams, early ends, retries.

The number in a test's id is the report's. See support/cases.py.
"""
import concurrent.futures
import time

import anthropic
import openai
import pytest

from support import http as web
from support.cases import ASK, busy, case, events_until_cut, held, in_flight, sdk, started, text
from support.deadline import eventually
from support.gateway import KEY
from support.phones import expected_text

# D. Deadlines and long prefill

@case(39, "a plain answer has a budget for the whole and none for its head")
def test_a_plain_answer_takes_its_time(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"plain_total": "1s", "gap_min": "1s", "gap_cap": "1s"}})
    for phone in phones:
        phone.fault("slow", seconds=3)
    answer = gateway.chat(text=ASK, max_tokens=6)
    assert text(answer) == expected_text(ASK, 6)
    assert answer.headers["x-huntgroup-attempts"] == "1" and sum(started(phones)) == 1


@case(43, "retries of gateway and client do not multiply")
def test_retries_do_not_multiply(row, stage):
    phones = stage.phones(5, model="tiny")
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("status", code=503)
    with sdk(gateway, max_retries=2) as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ASK}])
    assert caught.value.status_code == 502 and caught.value.code == "upstream_error"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert sum(started(phones)) <= 3 and max(started(phones)) <= 1


@case(45, "silence between tokens ends in an error event")
def test_silence_between_tokens(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"gap_min": "1s", "gap_cap": "1s", "continue": "never"}})
    phones[0].fault("hang_after", chunks=5)
    begun = time.monotonic()
    with gateway.stream(text=ASK, max_tokens=20) as stream:
        events = events_until_cut(stream)
    assert "error" in events[-1] and time.monotonic() - begun < 20
    eventually(lambda: busy(gateway) == 0, within=1, what="the slot's return")


@case(47, "a slow but sound phone is not given up")
def test_no_hasty_failover(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("slow", seconds=3)
    with gateway.stream(text=ASK, max_tokens=6) as stream:
        events = list(stream.events())
    assert web.text_of(events) == expected_text(ASK, 6) and sum(started(phones)) == 1


@case(49, "a first token that never comes is awaited for a bounded time")
def test_the_first_token_has_a_deadline(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"first_token_min": "1s", "first_token_cap": "1s"}})
    phones[0].fault("hang_after", chunks=0)
    for _ in range(3):
        with gateway.stream(text=ASK, max_tokens=6) as stream:
            events = list(stream.events())
        assert web.text_of(events) == expected_text(ASK, 6)


PATIENT = {"streams": {"head_after": "300ms", "keepalive_interval": "300ms"}}


@case(51, "a client with a short read timeout gets a slow stream")
def test_early_head_and_keepalive(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config=PATIENT)
    phones[0].fault("slow", seconds=3)
    with sdk(gateway, timeout=1.2, max_retries=0) as client:
        chunks = list(client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": ASK}], max_tokens=6, stream=True
        ))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected_text(ASK, 6)
    assert started(phones) == [1]


@case(59, "no silence is longer than the interval")
def test_the_keepalive_interval(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config=PATIENT)
    phones[0].fault("slow", seconds=3)
    with gateway.stream(text=ASK, max_tokens=6) as stream:
        assert stream.head() == 200 and stream.head_seconds < 1
        list(stream.events())
    moments = [stream.head_seconds, *(at for at, _ in stream.comments)]
    assert len(moments) > 5
    assert max(b - a for a, b in zip(moments, moments[1:])) < 0.8


@case(53, "a connection that falls silent frees its slot")
def test_a_silent_connection(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"first_token_min": "2s", "first_token_cap": "2s"}, "scheduler": {"max_attempts": 1}})
    phones[0].fault("slow", seconds=60)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(lambda: events_of(gateway))
        eventually(lambda: phones[0].stats()["running_now"] == 1, what="the phone at work")
        phones[0].fault("black_hole")
        assert answer.result(timeout=30) in (502, 503, 504)
    eventually(lambda: busy(gateway) == 0, within=1, what="the slot's return")


def events_of(gateway):
    with gateway.stream(text=ASK) as stream:
        return stream.head()


@case(55, "a queued stream is kept alive from its beginning")
def test_keepalive_in_the_queue(row, stage):
    phones = stage.phones(1, model="tiny", slots=1)
    gateway = stage.gateway(phones, config=PATIENT)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = held(gateway, phones, pool, seconds=2)
        with gateway.stream(text=ASK, max_tokens=4) as stream:
            assert stream.head() == 200 and stream.head_seconds < 1
            events = list(stream.events())
        assert first.result().status == 200
    assert len(stream.comments) >= 3
    assert web.text_of(events) == expected_text(ASK, 4) and events[-1] == "[DONE]"


@case(57, "keep-alives can be data")
def test_data_bearing_keepalive(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {**PATIENT["streams"], "keepalive": "chunk"}})
    phones[0].fault("slow", seconds=2)
    with gateway.stream(text=ASK, max_tokens=6) as stream:
        events = list(stream.events())
    fillers = [e for e in events if isinstance(e, dict) and not web.text_of([e]) and not web.finish_of([e])]
    assert len(fillers) >= 3 and not stream.comments
    assert len({e["id"] for e in events if isinstance(e, dict)}) == 1
    assert all(e["object"] == "chat.completion.chunk" and len(e["choices"]) == 1 for e in fillers)
    assert web.text_of(events) == expected_text(ASK, 6)


SILENT = {
    "completions": lambda openai, _: "".join(
        chunk.choices[0].text for chunk in openai.completions.create(model="tiny", prompt=ASK, max_tokens=6, stream=True) if chunk.choices
    ),
    "responses": lambda openai, _: "".join(
        event.delta for event in openai.responses.create(model="tiny", input=ASK, max_output_tokens=6, stream=True)
        if event.type == "response.output_text.delta"
    ),
    "messages": lambda _, anthropic: "".join(
        event.delta.text
        for event in anthropic.messages.create(
            model="tiny", messages=[{"role": "user", "content": ASK}], max_tokens=6, stream=True
        ) if event.type == "content_block_delta"
    ),
}


@case(61, "every client of every API lives through a long prompt")
@pytest.mark.parametrize("api", SILENT)
def test_silence_on_every_route(row, stage, api):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config=PATIENT)
    phones[0].fault("slow", seconds=3)
    with sdk(gateway, timeout=1.2, max_retries=0) as first, anthropic.Anthropic(
        base_url=gateway.url, api_key=KEY, timeout=1.2, max_retries=0
    ) as second:
        assert SILENT[api](first, second) == expected_text(ASK, 6)
    assert started(phones) == [1]


@case(63, "streams tell buffers to keep out")
def test_stream_headers(row, stage):
    gateway = stage.gateway(stage.phones(1, model="tiny"))
    with gateway.stream(text=ASK, headers={"accept-encoding": "gzip, br"}, max_tokens=2) as stream:
        assert stream.head() == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in stream.headers["cache-control"] and stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["content-encoding"] is None
        list(stream.events())


# F. SSE parsing: every line ending and packet size is in test_faults.py

@case(65, "all line endings give the same text")
@pytest.mark.parametrize("ending", ["lf", "cr_lf", "cr"])
def test_line_endings(row, stage, ending):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    for size in (1, 3, 50):
        phones[0].fault("split_everywhere", line_ending=ending, bytes=size)
        with gateway.stream(text=ASK, max_tokens=12) as stream:
            events = list(stream.events())
        assert web.text_of(events) == expected_text(ASK, 12) and events[-1] == "[DONE]"


@case(69, "an event without an end is cut off")
def test_an_endless_line(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("endless_line")
    before = gateway.metrics().sum("process_resident_memory_bytes")
    with gateway.stream(text=ASK, timeout=60) as stream:
        if stream.head() == 200:
            assert "error" in events_until_cut(stream)[-1]
        else:
            assert stream.status == 502
    eventually(lambda: in_flight(gateway) == 0, within=2, what="the request's end")
    assert gateway.metrics().sum("process_resident_memory_bytes") - before < 24 << 20


@case(71, "usage is taken wherever it is")
@pytest.mark.parametrize("fault", ["none", "usage_in_delta"])
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not asked"])
def test_usage_in_any_chunk(row, stage, fault, asked):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault(fault)
    with gateway.stream(text=ASK, max_tokens=7, **({"stream_options": {"include_usage": True}} if asked else {})) as stream:
        events = [e for e in stream.events() if isinstance(e, dict)]
    usages = [e["usage"] for e in events if e.get("usage")]
    assert [u["completion_tokens"] for u in usages] == ([7] if asked else [])
    assert all(e["choices"] for e in (events[:-1] if asked else events))
    eventually(lambda: gateway.metrics().sum("huntgroup_tokens_total", direction="completion") == 7, within=2, what="the record")


# G. Streams that end early

@case(73, "a cut stream never looks finished")
@pytest.mark.parametrize("fault", ["cut_after", "early_done"])
def test_a_cut_stream(row, stage, fault):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"continue": "never"}})
    phones[0].fault(fault, chunks=5)
    with sdk(gateway, max_retries=0) as client, pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ASK}], max_tokens=20, stream=True))
    assert gateway.metrics().sum("huntgroup_requests_total", outcome="ok") == 0


@case(75, "a finish reason is enough")
def test_no_done(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("no_done")
    with gateway.stream(text=ASK, max_tokens=6) as stream:
        events = list(stream.events())
    assert events[-1] == "[DONE]" and web.finish_of(events) == ["length"]
    eventually(lambda: gateway.metrics().sum("huntgroup_requests_total", outcome="ok") == 1, within=2, what="the record")


@case(77, "after the head an error travels in the stream")
def test_an_error_in_the_stream(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"gap_min": "1s", "gap_cap": "1s", "continue": "never"}})
    phones[0].fault("hang_after", chunks=3)
    with gateway.stream(text=ASK, max_tokens=20) as stream:
        events = events_until_cut(stream)
    assert stream.status == 200
    assert set(events[-1]) == {"error"} and set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert stream.raw.count(b"HTTP/1.1") == 0


@case(79, "200 with an error in it is that error")
@pytest.mark.parametrize("fault", [{"fault": "error_in200", "code": 429}, {"fault": "error_in200", "code": 500}, {"fault": "empty200"}])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_error_in_200(row, stage, fault, streamed):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault(**fault)
    for _ in range(3):
        if streamed:
            with gateway.stream(text=ASK, max_tokens=6) as stream:
                assert web.text_of(stream.events()) == expected_text(ASK, 6)
        else:
            assert text(gateway.chat(text=ASK, max_tokens=6)) == expected_text(ASK, 6)
    phones[1].fault(**fault)
    alone = gateway.chat(text=ASK, max_tokens=6)
    assert alone.status in (429, 502, 503) and alone.error["message"]


# H. Retries and partial output

@case(81, "partial output is never replayed into the same stream")
def test_no_replay(row, stage):
    phones = stage.phones(3, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"continue": "never"}})
    for phone in phones:
        phone.fault("cut_after", chunks=20)
    with gateway.stream(text=ASK, max_tokens=60) as stream:
        said = web.text_of(events_until_cut(stream))
    assert said and expected_text(ASK, 60).startswith(said)
    assert sum(started(phones)) == 1


def carried_on(gateway):
    return gateway.metrics().sum("huntgroup_continuations_total", outcome="same_group") + gateway.metrics().sum(
        "huntgroup_continuations_total", outcome="other_group"
    )


@case(83, "a phone that refuses to carry on is not asked to")
@pytest.mark.parametrize("able", [1, 0], ids=["another-can", "nobody-can"])
def test_phones_that_refuse_to_carry_on(row, stage, able):
    unable = stage.phones(2, model="tiny", continuation="refuse")
    others = stage.phones(able, model="tiny") if able else []
    gateway = stage.gateway([*unable, *others])
    for phone in unable:
        phone.fault("cut_after", chunks=20)
    with gateway.stream(text=ASK, max_tokens=60) as stream:
        if able:
            events = list(stream.events())
            assert web.text_of(events) == expected_text(ASK, 60) and events[-1] == "[DONE]"
        else:
            events = events_until_cut(stream)
            assert "error" in events[-1] and expected_text(ASK, 60).startswith(web.text_of(events))
    assert sum(started(unable)) == 1 and carried_on(gateway) == able


@case(85, "a client that wants no other phone after the first word gets none")
@pytest.mark.parametrize("how", ["header", "setting"])
def test_no_fallback_holds_in_the_stream(row, stage, how):
    phones = stage.phones(3, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"continue": "never"}} if how == "setting" else {})
    for phone in phones:
        phone.fault("cut_after", chunks=5)
    headers = {"X-Huntgroup-Continue": "never"} if how == "header" else {}
    with gateway.stream(text=ASK, max_tokens=60, headers=headers) as stream:
        events = events_until_cut(stream)
    assert "error" in events[-1] and sum(started(phones)) == 1
    assert expected_text(ASK, 60).startswith(web.text_of(events)) and web.text_of(events)


@case(89, "an answer goes on elsewhere, and its seam is exact")
@pytest.mark.parametrize("mid_word", [False, True], ids=["between-words", "in-a-word"])
@pytest.mark.parametrize("cuts", [1, 3])
def test_an_exact_seam(row, stage, mid_word, cuts):
    phones = stage.phones(cuts + 1, model="tiny")
    gateway = stage.gateway(phones)
    for phone in phones[:cuts]:
        phone.fault("cut_after", chunks=20, mid_word=mid_word)
    with gateway.stream(text=ASK, max_tokens=100) as stream:
        events = list(stream.events())
    assert web.text_of(events) == expected_text(ASK, 100) and web.finish_of(events) == ["length"] and events[-1] == "[DONE]"
    assert carried_on(gateway) == cuts
    assert [note.split()[1] for _, note in stream.comments if note.startswith("huntgroup ")] == [f"continued={cuts}"]


@case(87, "a cut JSON answer is an error and no join")
def test_a_cut_json_answer(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones, config={"streams": {"continue": "never"}})
    for phone in phones:
        phone.fault("cut_after", chunks=3)
    with gateway.stream(text=ASK, max_tokens=60, response_format={"type": "json_object"}) as stream:
        events = events_until_cut(stream)
    assert "error" in events[-1] and sum(started(phones)) == 1


@case(91, "no phone is asked twice for one request")
@pytest.mark.parametrize("fault", [{"fault": "status", "code": 500}, {"fault": "reset_before_head"}, {"fault": "close_before_head"}])
def test_tried_phones_are_left_out(row, stage, fault):
    phones = stage.phones(3, model="tiny")
    gateway = stage.gateway(phones, config={"health": {"hard_failures": 100, "soft_failures": 100}})
    for phone in phones:
        phone.fault(**fault)
    answer = gateway.chat(text=ASK)
    assert answer.status == 502 and answer.error["code"] == "upstream_error"
    attempts = gateway.metrics().of("huntgroup_attempts_total")
    assert len({s.labels["replica"] for s in attempts}) == 3 and [s.value for s in attempts] == [1, 1, 1]
    # A connection that was kept from a probe and dies under the request is given one fresh try.
    assert all(count <= (1 if fault["fault"] == "status" else 2) for count in started(phones))


@case(93, "429 from a phone means elsewhere now")
def test_429_means_elsewhere(row, stage):
    phones = stage.phones(2, model="tiny")
    gateway = stage.gateway(phones)
    phones[0].fault("status", code=429, retry_after=30)
    for _ in range(4):
        answer = gateway.chat(text=ASK, max_tokens=4)
        assert text(answer) == expected_text(ASK, 4) and answer.seconds < 2
