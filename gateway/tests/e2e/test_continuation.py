"""An answer whose engine goes away in the middle is carried on by another, and its client never knows.

Real engines of one build at temperature 0, so that there is only one right answer: the one of a run that nothing disturbs. Between
each engine and the gateway stands a tunnel of ours that cuts the connection at an exact moment, or kills the engine there.

These engines keep their streams, so an answer whose connection alone is cut could be read on from the engine that wrote it. The tests
here are about what happens when that engine is gone: their gateways do not try. Reading on is the subject of test_resume.py.
"""
import json

import anthropic
import openai
import pytest

from support import asking
from support.asking import chat
from support.breaking import (
    Pair, after, after_finish, after_text, before_done, in_prefill, inside_a_character, inside_text, tunnels_to,
)

MODELS = ["tiny", "polyglot", "thinker", "talker", "caller"]
TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "the time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]},
    },
}
# Asked without a description, the model calls at once; with one, it says a word first.
BARE = {"type": "function", "function": {key: value for key, value in TOOL["function"].items() if key != "description"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": {
    "type": "object", "required": ["risk", "why", "tags"], "additionalProperties": False,
    "properties": {
        "risk": {"type": "integer", "minimum": 1, "maximum": 99}, "why": {"type": "string", "maxLength": 24},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    },
}}}

both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
apis = pytest.mark.parametrize("api", list(asking.ALL))


@pytest.fixture(scope="module")
def engines(shared_stage):
    """Two of each model, for tests that cut connections and harm no engine."""
    return {model: tunnels_to(shared_stage, model) for model in MODELS}


@pytest.fixture
def pair_of(engines, stage):
    def pair(model, **config):
        for tunnel in engines[model]:
            tunnel.cut = None
        streams = {"resume": False, **config.pop("streams", {})}
        return Pair(stage.gateway(engines[model], config={"streams": streams, **config}), engines[model])

    return pair


MOMENTS = {
    "before the first token": after_text(0),
    "after the first token": after_text(1),
    "after some words": after_text(9),
    "inside a word": inside_text(6),
    "inside an event": inside_text(6, at=lambda raw, text: 20),
}


@apis
@both
@pytest.mark.parametrize("moment", MOMENTS, ids=[name.replace(" ", "-") for name in MOMENTS])
def test_a_text_is_what_it_would_have_been(pair_of, api, stream, moment):
    pair = pair_of("tiny")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "tiny", max_tokens=24)
    uncut = ask()
    cut = pair.cut(MOMENTS[moment])
    said = ask()
    assert len(cut.made) == 1 and said.bare() == uncut.bare()
    assert len(said.ids) == 1 and len(said.text.split()) == 24


@pytest.mark.parametrize("api, raises", [("chat", openai.APIError), ("messages", anthropic.APIError)])
def test_a_stream_that_the_client_itself_began_ends_in_an_error(pair_of, api, raises):
    """No engine takes two messages of the assistant's at the end."""
    pair = pair_of("tiny")
    begun = [*asking.WORDS, {"role": "assistant", "content": "well then"}]
    cut = pair.cut(after_text(9))
    with pytest.raises(raises):
        asking.ALL[api](pair.gateway, True, "tiny", messages=begun, max_tokens=24)
    assert len(cut.made) == 1 and pair.continuations(outcome="impossible_prompt") == 1


@both
def test_an_engine_that_is_killed_is_as_good_as_a_cut_connection(stage, stream):
    tunnels = tunnels_to(stage, "tiny")
    pair = Pair(stage.gateway(tunnels), tunnels)
    uncut = chat(pair.gateway, stream, "tiny", max_tokens=40)
    cut = pair.cut(after_text(11), then=lambda tunnel: tunnel.engine.kill())
    said = chat(pair.gateway, stream, "tiny", max_tokens=40)
    assert said.bare() == uncut.bare()
    assert not cut.made[0].engine.process.alive and len(pair.carried_on()) == 1
    assert pair.continuations(outcome="same_group") == 1


@both
def test_a_character_cut_in_two_reaches_its_client_whole(pair_of, stream):
    pair = pair_of("polyglot")
    uncut = chat(pair.gateway, stream, "polyglot", max_tokens=60)
    assert not uncut.text.isascii(), "the model says nothing but ASCII"
    cut = pair.cut(inside_a_character)
    said = chat(pair.gateway, stream, "polyglot", max_tokens=60)
    assert len(cut.made) == 1 and said.bare() == uncut.bare() and "\ufffd" not in said.text


@both
def test_an_answer_is_carried_on_as_often_as_it_breaks_off(stage, stream):
    tunnels = tunnels_to(stage, "tiny", count=3)
    pair = Pair(stage.gateway(tunnels, config={"streams": {"resume": False}}), tunnels)
    uncut = chat(pair.gateway, stream, "tiny", max_tokens=40)
    cut = pair.cut(after_text(8), times=2)
    said = chat(pair.gateway, stream, "tiny", max_tokens=40)
    assert len(cut.made) == 2 and said.bare() == uncut.bare()


@pytest.mark.parametrize("cut_after", [5, 20])
@both
def test_a_real_model_goes_on_word_for_word(stage, stream, cut_after):
    tunnels = tunnels_to(stage, "smollm2", slots=1)
    pair = Pair(stage.gateway(tunnels, config={"streams": {"resume": False}}), tunnels)
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    uncut = chat(pair.gateway, stream, "smollm2", question, max_tokens=40)
    cut = pair.cut(after_text(cut_after))
    said = chat(pair.gateway, stream, "smollm2", question, max_tokens=40)
    assert len(cut.made) == 1 and said.bare() == uncut.bare()
    assert len(pair.carried_on()) == 1


@pytest.mark.parametrize("api", ["chat", "messages"])
@both
def test_thoughts_are_carried_on(pair_of, api, stream):
    pair = pair_of("thinker")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "thinker", max_tokens=200)
    uncut = ask()
    assert len(uncut.thoughts.split()) > 6 and uncut.text and uncut.finish in ("stop", "end_turn")

    cut = pair.cut(after("thought", 5))
    said = ask()
    assert len(cut.made) == 1
    assert (said.thoughts, said.text, said.finish) == (uncut.thoughts, uncut.text, uncut.finish)


@both
def test_an_answer_behind_thoughts_keeps_both_and_reads_on(pair_of, stream):
    """Where the model closed its thinking otherwise than the template does, the rest may differ: it is seamless, not the same."""
    pair = pair_of("thinker")
    uncut = chat(pair.gateway, stream, "thinker", max_tokens=200)
    cut = pair.cut(after_text(5))
    said = chat(pair.gateway, stream, "thinker", max_tokens=200)
    assert len(cut.made) == 1
    seam = "".join(uncut.text.partition(uncut.text.split()[4])[:2])
    assert said.thoughts == uncut.thoughts and said.text.startswith(seam) and len(said.text) > len(seam)
    assert "<think>" not in said.text and said.finish in ("stop", "length")
    body, = pair.carried_on()
    assert body["messages"][-1]["reasoning_content"] == uncut.thoughts


@pytest.mark.parametrize("cut_after", [1, 4, 9, 14])
@both
def test_json_stays_valid_for_its_schema(pair_of, stream, cut_after):
    pair = pair_of("tiny")
    cut = pair.cut(after_text(cut_after))
    said = chat(pair.gateway, stream, "tiny", max_tokens=400, response_format=SCHEMA)
    assert len(cut.made) == 1 and said.finish == "stop"
    verdict = json.loads(said.text)
    assert set(verdict) == {"risk", "why", "tags"} and 1 <= verdict["risk"] <= 99 and len(verdict["why"]) <= 24
    assert set(verdict["tags"]) <= {"red", "green"}


calling = pytest.mark.parametrize("api", ["chat", "responses", "messages"])


@pytest.mark.parametrize("pieces", [0, 1, 6, 9])
@calling
@both
def test_tools_are_called_as_they_would_have_been(pair_of, api, stream, pieces):
    pair = pair_of("caller")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "caller", max_tokens=300, tools=[BARE])
    uncut = ask()
    assert uncut.calls and not uncut.text and {name for name, _ in uncut.calls} == {"now"}
    cut = pair.cut(after("of_call", pieces))
    said = ask()
    assert len(cut.made) == 1 and said.bare() == uncut.bare()


@pytest.mark.parametrize("pieces", [0, 6, 15])
@calling
@both
def test_a_text_before_a_call_is_carried_on_to_a_valid_call(pair_of, api, stream, pieces):
    """The parser for calls strips the space that these models begin with: so the text given is not the one written, and what comes
    after it may be another."""
    pair = pair_of("caller")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "caller", max_tokens=300, tools=[TOOL])
    uncut = ask()
    assert uncut.text and len(uncut.calls) == 2
    cut = pair.cut(after("of_call", pieces))
    said = ask()
    assert len(cut.made) == 1 and said.text.startswith(uncut.text) and said.finish == uncut.finish
    assert said.calls and all(name == "now" and set(arguments) == {"city"} for name, arguments in said.calls)


@pytest.mark.parametrize("where", [after_finish, before_done], ids=["after the finish reason", "before the end"])
@pytest.mark.parametrize("api", ["chat", "completions"])
@both
def test_an_answer_with_its_finish_reason_is_whole(pair_of, api, stream, where):
    pair = pair_of("talker")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "talker", max_tokens=200)
    uncut = ask()
    cut = pair.cut(where)
    said = ask()
    assert len(cut.made) == 1 and (said.text, said.finish) == (uncut.text, uncut.finish)
    assert len(pair.asked()) == 1, "nothing was left to carry on"


@both
def test_a_connection_lost_in_the_prompt_costs_the_client_nothing(stage, stream):
    tunnels = tunnels_to(stage, "tiny", batch=64, context=4096)
    pair = Pair(stage.gateway(tunnels), tunnels)
    long = [{"role": "user", "content": "hand picture again change " * 300}]
    uncut = chat(pair.gateway, stream, "tiny", long, max_tokens=12)
    cut = pair.cut(in_prefill)
    # Another prompt: this one is in the cache.
    other = [{"role": "user", "content": "picture again change hand " * 300}]
    said = chat(pair.gateway, stream, "tiny", other, max_tokens=12)
    assert len(cut.made) == 1 and said.tokens == uncut.tokens == 12
    assert said.text == tunnels[0].engine.post(
        "/v1/chat/completions", {"model": "tiny", "messages": other, "max_tokens": 12, "temperature": 0}).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("how", ["config", "header"])
def test_who_does_not_want_another_engines_words_gets_an_error_in_the_stream(pair_of, how):
    pair = pair_of("tiny", **({"streams": {"continue": "never"}} if how == "config" else {}))
    headers = {"x-huntgroup-continue": "never"} if how == "header" else None
    cut = pair.cut(after_text(5))
    with pytest.raises(openai.APIError) as caught:
        chat(pair.gateway, True, "tiny", max_tokens=24, headers=headers)
    assert not isinstance(caught.value, openai.APIStatusError) or caught.value.status_code == 502
    assert len(cut.made) == 1 and not pair.carried_on()
    pair.cut(after_text(5))
    with pytest.raises(anthropic.APIError):
        asking.message(pair.gateway, True, "tiny", max_tokens=24, headers=headers)


@pytest.mark.parametrize("api", list(asking.ALL))
def test_a_plain_answer_of_which_nobody_saw_a_word_is_whole_even_then(pair_of, api):
    pair = pair_of("tiny", streams={"continue": "never"})
    uncut = asking.ALL[api](pair.gateway, False, "tiny", max_tokens=24)
    cut = pair.cut(after_text(5))
    said = asking.ALL[api](pair.gateway, False, "tiny", max_tokens=24)
    assert len(cut.made) == 1 and said.bare() == uncut.bare() and not pair.carried_on()


def test_an_answer_that_nobody_is_left_to_carry_on_ends_in_an_error_never_cleanly(pair_of):
    pair = pair_of("tiny", scheduler={"no_replica_wait": "0s"})
    cut = pair.cut(after_text(3), times=99)
    with pytest.raises(openai.APIError):
        chat(pair.gateway, True, "tiny", max_tokens=24)
    assert len(cut.made) >= 1
