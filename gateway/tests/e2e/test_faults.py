"""Every fault a phone can have, beside a phone that is well: before content the client gets the right answer, after it an honest error.

The fake phone's answer carries a digest of its request, so a wrong, doubled or mixed-up answer cannot pass for the right one.
"""
import http.client

import pytest

from support import http as web
from support.deadline import eventually
from support.phones import expected_text

ASK = "alpha beta gamma delta"
TOKENS = 24

# Faults that strike before the client has seen anything, and on both kinds of answers: another phone answers.
BEFORE = {
    "refuse": {}, "black_hole": {}, "app_closed": {}, "reset_before_head": {}, "close_before_head": {}, "freeze_before_head": {},
    "html 200": {"status": 200}, "html 404": {"status": 404}, "html 502": {"status": 502}, "html 530": {"status": 530},
    "status 429": {"code": 429, "retry_after": 1}, "status 500": {"code": 500}, "status 502": {"code": 502}, "status 503": {"code": 503},
    "empty200": {}, "error_in200": {"code": 429}, "redirect": {"location": "http://127.0.0.1:9/elsewhere"}, "wrong_key": {},
    "loading": {"for_s": 3}, "huge_headers": {"bytes": 300_000}, "many_headers": {"lines": 2000}, "hang_after 0": {"chunks": 0},
    "cut_after 0": {"chunks": 0}, "head_then_silence": {"seconds": 30}, "endless_line": {}, "gzip_bomb": {"mebibytes": 64},
}
# Those that are only seen when the answer is whole: a plain answer can still come from elsewhere.
PLAIN_ONLY = {
    "broken_json": {}, "wrong_content_length long": {"by": 50}, "cut_after": {"chunks": 5}, "reset_after": {"chunks": 5},
    "hang_after": {"chunks": 5},
}
# Those that break a stream which has begun: an error event, then the end, and nothing that looks finished.
IN_STREAM = {
    "cut_after": {"chunks": 5}, "cut_after mid word": {"chunks": 5, "mid_word": True}, "reset_after": {"chunks": 5},
    "hang_after": {"chunks": 5}, "error_after": {"chunks": 5, "code": 500}, "early_done": {"chunks": 5},
}
# Odd, but right answers.
ODD = {
    "no_done": {}, "no_usage": {}, "usage_in_delta": {}, "silly_usage": {}, "extra_headers": {}, "flood1xx": {"count": 20},
    "slow": {"seconds": 0.5}, "drip": {"bytes_per_s": 200_000}, "terminal_escapes": {},
    **{f"split_everywhere {ending} {size}": {"line_ending": ending, "bytes": size} for ending in ("lf", "cr_lf", "cr") for size in (1, 2, 7, 64)},
}


def order(phone, name, fields, **scope):
    phone.fault(name.split(" ")[0], **fields, **scope)


@pytest.fixture
def phones(stage):
    return stage.phones(2, model="tiny", slots=2)


@pytest.fixture
def gateway(stage, phones):
    return stage.gateway(phones, config={
        "streams": {"first_token_min": "1s", "first_token_cap": "1s", "gap_min": "1s", "gap_cap": "1s", "plain_total": "2s",
                    # What is carried on is the subject of test_continuation.py.
                    "continue": "never"},
        # A sick phone must not be kept away: each request shall meet it.
        "health": {"hard_failures": 100, "soft_failures": 100, "min_samples": 1000},
    })


def several(ask):
    """Three answers one after the other: with two equal phones the sick one's turn comes, unless its probes have told on it."""
    return [ask() for _ in range(3)]


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_before_content_another_phone_answers(gateway, phones, name, streamed):
    order(phones[0], name, BEFORE[name])

    def ask():
        if not streamed:
            answer = gateway.chat(text=ASK, max_tokens=TOKENS)
            assert answer.status == 200, answer
            return answer.json()["choices"][0]["message"]["content"]
        with gateway.stream(text=ASK, max_tokens=TOKENS) as stream:
            assert stream.head() == 200
            events = list(stream.events())
        assert events[-1] == "[DONE]" and web.finish_of(events) == ["length"], events[-3:]
        return web.text_of(events)

    for text in several(ask):
        assert text == expected_text(ASK, TOKENS)


@pytest.mark.parametrize("name", PLAIN_ONLY)
def test_a_plain_answer_that_breaks_is_fetched_elsewhere(gateway, phones, name):
    order(phones[0], name, PLAIN_ONLY[name])

    def ask():
        answer = gateway.chat(text=ASK, max_tokens=TOKENS)
        assert answer.status == 200, answer
        return answer.json()["choices"][0]["message"]["content"]

    for text in several(ask):
        assert text == expected_text(ASK, TOKENS)


@pytest.mark.parametrize("name", IN_STREAM)
def test_a_stream_that_breaks_ends_with_an_error_and_never_cleanly(stage, gateway, phones, name):
    for phone in phones:
        order(phone, name, IN_STREAM[name])
    with gateway.stream(text=ASK, max_tokens=TOKENS) as stream:
        assert stream.head() == 200
        events = []
        with pytest.raises((http.client.HTTPException, OSError)):
            for event in stream.events():
                events.append(event)
    error = events.pop()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "server_error"
    assert not web.finish_of(events) and "[DONE]" not in events
    text = web.text_of(events)
    assert text and expected_text(ASK, TOKENS).startswith(text), "what went out is the beginning of the answer, once"
    assert sum(phone.stats()["started"] for phone in phones) == 1, "it was run again after content had gone out"


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_an_odd_answer_is_a_right_one(gateway, phones, name, streamed):
    for phone in phones:
        order(phone, name, ODD[name])
    if not streamed:
        answer = gateway.chat(text=ASK, max_tokens=TOKENS)
        assert answer.status == 200, answer
        text = answer.json()["choices"][0]["message"]["content"]
        headers = answer.headers
    else:
        with gateway.stream(text=ASK, max_tokens=TOKENS, stream_options={"include_usage": True}) as stream:
            events = list(stream.events())
        assert events[-1] == "[DONE]" and web.finish_of(events) == ["length"], events[-3:]
        usages = [e["usage"] for e in events if isinstance(e, dict) and e.get("usage")]
        assert len(usages) == 1 and events[-2]["choices"] == []
        text, headers = web.text_of(events), stream.headers
    if name != "terminal_escapes":
        assert text == expected_text(ASK, TOKENS)
    assert not {"set-cookie", "location", "access-control-allow-origin"} & {k.lower() for k in headers}
    assert "\x1b" not in gateway.process.text(), "a phone's terminal escapes are in the log"


def test_endless_text_ends_at_the_clients_limit_or_with_its_leave(gateway, phones):
    for phone in phones:
        phone.fault("endless_stream")
    before = gateway.metrics().sum("process_resident_memory_bytes")
    with gateway.stream(text=ASK, max_tokens=TOKENS) as stream:
        for i, _ in enumerate(stream.events()):
            if i > 3000:
                break
    eventually(lambda: gateway.metrics().sum("huntgroup_requests_in_flight") == 0, within=2, what="the request's end")
    assert gateway.metrics().sum("process_resident_memory_bytes") - before < 32 << 20


def test_a_phone_never_answers_for_another_request(gateway, phones):
    """Fifty different questions at once: each answer carries its own question's digest."""
    import concurrent.futures

    def ask(i):
        question = f"question {i} of many"
        return gateway.chat(text=question, max_tokens=9).json()["choices"][0]["message"]["content"] == expected_text(question, 9)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(50)))
    assert all(phone.stats()["over_subscribed"] == 0 for phone in phones)
