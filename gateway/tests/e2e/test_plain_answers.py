"""A plain answer is put together from a stream, and must be what the engine itself would have answered, field by field.

Engines are asked for streams whatever the client wants. So each request of the table goes to an engine directly and through the gateway,
and the two answers are compared: all that the engine says is there, with the same value in the same place, and what the gateway says
beyond it is in the list of what it may.
"""
import copy

import pytest

from support import asking

USER = [{"role": "user", "content": "say some words"}]
TALK = [
    {"role": "system", "content": "be brief"}, {"role": "user", "content": "who are you"}, {"role": "assistant", "content": "a model"},
    {"role": "user", "content": [{"type": "text", "text": "say"}, {"type": "text", "text": "more"}]},
]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "now", "description": "the time in a city", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "weather", "description": "the weather in a city", "parameters": PARAMETERS}}
CALLED = [
    *USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"city": "Rome"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
]
SCHEMA = {
    "type": "object", "required": ["risk", "why"], "additionalProperties": False,
    "properties": {"risk": {"type": "integer", "minimum": 1, "maximum": 9}, "why": {"type": "string", "maxLength": 12}},
}

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


def chat(model="tiny", messages=USER, max_tokens=12, **fields):
    return CHAT, {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}


def completion(model="tiny", prompt="say some words", max_tokens=12, **fields):
    return COMPLETIONS, {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}


def response(model="tiny", input="say some words", max_output_tokens=12, **fields):
    return RESPONSES, {"model": model, "input": input, "max_output_tokens": max_output_tokens, "temperature": 0, **fields}


def message(model="tiny", messages=USER, max_tokens=12, **fields):
    return MESSAGES, {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}


ASKS = {
    "a text": chat(),
    "one token": chat(max_tokens=1),
    "a text that ends by itself": chat("talker", max_tokens=200),
    "a talk with parts": chat(messages=TALK),
    "characters of several bytes": chat("polyglot", max_tokens=40),
    "a stop string": chat("talker", max_tokens=60, stop=" the"),
    "stop strings": chat(max_tokens=60, stop=["nothing like it", " of", " a"]),
    "two choices": chat(n=2),
    "probabilities": chat(max_tokens=5, logprobs=True),
    "probabilities of others": chat(max_tokens=5, logprobs=True, top_logprobs=3),
    "probabilities of two choices": chat(max_tokens=4, n=2, logprobs=True, top_logprobs=1),
    "a seed": chat(temperature=0.9, seed=7),
    "penalties and a bias": chat(frequency_penalty=0.5, presence_penalty=0.5, logit_bias={"300": -5}),
    "a JSON object": chat(max_tokens=300, response_format={"type": "json_object"}),
    "JSON of a schema": chat(max_tokens=300, response_format={"type": "json_schema", "json_schema": {"name": "v", "schema": SCHEMA}}),
    "the engine's own measurements": chat(timings_per_token=True),
    "a call with a text before it": chat("caller", max_tokens=300, tools=[TOOL]),
    "a call of one of two tools": chat("caller", max_tokens=300, tools=[TOOL, OTHER]),
    "a call that is demanded": chat("caller", max_tokens=300, tools=[TOOL], tool_choice="required"),
    "tools that may not be called": chat("caller", max_tokens=30, tools=[TOOL], tool_choice="none"),
    "a call that was answered": chat("caller", messages=CALLED, max_tokens=30, tools=[TOOL]),
    "a call cut off by the limit": chat("caller", max_tokens=30, tools=[TOOL]),
    "thoughts": chat("thinker", max_tokens=200),
    "thoughts cut off by the limit": chat("thinker", max_tokens=5),
    "thoughts within a budget": chat("thinker", max_tokens=200, reasoning_budget_tokens=4),
    "thoughts in the text": chat("thinker", max_tokens=200, reasoning_format="none"),
    "a completion": completion(),
    "a completion that ends by itself": completion("talker", max_tokens=300),
    "a completion with a stop string": completion(max_tokens=60, stop=[" of", " a"]),
    "a completion with probabilities": completion(max_tokens=4, logprobs=2),
    "two completions": completion(n=2),
    "a completion of token ids": completion(prompt=[300, 301, 302, 303]),
    "a response": response(),
    "a response with instructions": response(instructions="be brief"),
    "a response that thinks": response("thinker", max_output_tokens=200),
    "a response in JSON": response(max_output_tokens=300, text={"format": {"type": "json_schema", "name": "v", "schema": SCHEMA}}),
    "a response that calls": response("caller", max_output_tokens=300, tools=[{"type": "function", **TOOL["function"]}]),
    "a message": message(),
    "a message under a system prompt": message(system="be brief"),
    "a message with a stop sequence": message(max_tokens=60, stop_sequences=[" of", " a"]),
    "a message that thinks": message("thinker", max_tokens=200),
    "a message that calls": message("caller", max_tokens=300, tools=[{"name": "now", "description": "the time in a city", "input_schema": PARAMETERS}]),
}

# The beginning of the answer, as the client wants it. An engine puts it before what is new.
BEGUN = [*USER, {"role": "assistant", "content": "well then"}]
ASKS |= {
    "a text that the client has begun": chat(messages=BEGUN),
    "thoughts and a text that the client has begun": chat(
        "thinker", [*USER, {"role": "assistant", "reasoning_content": "so it is", "content": "well then"}], 30),
    "a message that the client has begun": message(messages=BEGUN),
}

# New in every answer.
NEW = {"id", "created", "created_at", "completed_at", "call_id"}


def of_one_choice(usage, choices):
    """Usage as engines tell it: of a request for several choices they count one, and the gateway all."""
    written = usage["completion_tokens"] // choices
    return {**usage, "completion_tokens": written, "total_tokens": usage["prompt_tokens"] + written}


def comparable(value, path=()):
    """The answer without what is new in each, or depends on what the engine had in its cache."""
    if isinstance(value, dict):
        kept = {key: comparable(one, (*path, key)) for key, one in value.items() if not _is_new(key, path)}
        if "cache_read_input_tokens" in value:
            # Anthropic's count of what was read is without what was in the cache.
            kept["input_tokens"] += value["cache_read_input_tokens"]
        return kept
    if isinstance(value, list):
        return [comparable(one, path) for one in value]
    # The last digits of a probability depend on how much of the prompt was read at once.
    return round(value, 3) if isinstance(value, float) else value


def _is_new(key, path):
    # A token's id in `logprobs` is none.
    return (key in NEW and "logprobs" not in path) or key in ("cached_tokens", "cache_read_input_tokens", "timings")


def leaves(value, path=""):
    """Every place in an answer with its value."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for index, one in enumerate(value):
            yield from leaves(one, f"{path}[{index}]")
    else:
        yield path, value


@pytest.fixture(scope="module")
def engines(shared_stage):
    return {model: shared_stage.llama(model=model) for model in ("tiny", "talker", "polyglot", "caller", "thinker")}


@pytest.fixture(scope="module")
def gateway(shared_stage, engines):
    return shared_stage.gateway(list(engines.values()))


@pytest.mark.parametrize("name", ASKS, ids=[name.replace(" ", "-") for name in ASKS])
def test_a_plain_answer_is_the_engines_own(gateway, engines, name):
    path, body = ASKS[name]
    direct = engines[body["model"]].post(path, copy.deepcopy(body))
    ours = gateway.post(path, copy.deepcopy(body))
    assert (direct.status, ours.status) == (200, 200), (direct, ours)
    answer = ours.json()
    if "n" in body:
        answer["usage"] = of_one_choice(answer["usage"], body["n"])
    theirs, mine = dict(leaves(comparable(direct.json()))), dict(leaves(comparable(answer)))
    differs = {place: (value, mine.get(place, "absent")) for place, value in theirs.items() if place not in mine or mine[place] != value}
    more = {place: value for place, value in mine.items() if place not in theirs}
    assert (differs, more) == ({}, {})


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_what_the_client_has_begun_is_not_told_again_in_a_stream(gateway, api):
    plain, streamed = (asking.ALL[api](gateway, stream, "tiny", messages=BEGUN, max_tokens=12) for stream in (False, True))
    assert plain.text == "well then" + streamed.text and streamed.tokens == plain.tokens == 12


def test_several_prompts_have_their_completions_in_order(gateway, engines):
    path, body = completion(prompt=["say some words", "tell more"])
    direct, ours = engines["tiny"].post(path, body).json(), gateway.post(path, body).json()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in ours["choices"]] == [
        (c["index"], c["text"], c["finish_reason"]) for c in direct["choices"]]
    assert len(ours["choices"]) == 2 and ours["usage"]["completion_tokens"] == 24
    assert ours["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"], "the first prompt's, as engines tell it"


def test_the_usage_of_several_prompts_is_the_same_in_every_run(gateway, engines):
    """Which of them ends last is a matter of chance, and a stream tells of each as it ends."""
    path, body = completion(prompt=["say some words", "tell", "tell more and more of it", [300, 301]], max_tokens=3)
    direct = engines["tiny"].post(path, body).json()["usage"]["prompt_tokens"]
    assert {gateway.post(path, body).json()["usage"]["prompt_tokens"] for _ in range(6)} == {direct}
    with gateway.stream("tiny", path=path, prompt=body["prompt"], max_tokens=3, stream_options={"include_usage": True}) as stream:
        usage, = (event["usage"] for event in stream.events() if isinstance(event, dict) and event.get("usage"))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (direct, 12)


def test_more_prompts_than_fit_a_stream_are_answered_in_one_piece_or_refused(gateway, engines):
    path, body = completion(prompt=["say some words"] * 130, max_tokens=1)
    assert len(gateway.post(path, body).json()["choices"]) == 130
    refused = gateway.post(path, {**body, "stream": True})
    assert refused.status == 400 and refused.error["param"] == "prompt"


def test_measurements_are_told_to_those_who_ask_for_them_alone(gateway):
    path, body = ASKS["the engine's own measurements"]
    assert gateway.post(path, body).json()["timings"]["predicted_n"] == 12
    path, body = ASKS["a text"]
    assert "timings" not in gateway.post(path, body).json()


def test_what_was_in_the_cache_is_told(gateway, engines):
    path, body = chat(messages=[{"role": "user", "content": "hand picture again change " * 20}])
    gateway.post(path, body)
    again = gateway.post(path, body).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
