"""The official Python client against two real engines behind the gateway: what it asks for is what it gets."""
import base64
import json
import struct

import openai
import pytest

WORDS = [{"role": "user", "content": "say some words"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "the time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]},
    },
}


def test_a_plain_chat_is_answered_with_usage_and_a_finish_reason(client):
    answer = client.chat.completions.create(model="tiny", messages=WORDS, max_tokens=8, temperature=0)
    assert answer.object == "chat.completion" and answer.id and answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content.split()
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_the_gateway_says_the_text_that_the_engine_says(client, zoo):
    ask = {"model": "tiny", "messages": WORDS, "max_tokens": 24, "temperature": 0}
    direct = zoo.tiny[0].post("/v1/chat/completions", ask).json()
    plain = client.chat.completions.create(**ask)
    streamed = client.chat.completions.create(**ask, stream=True)
    text = direct["choices"][0]["message"]["content"]
    assert plain.choices[0].message.content == text
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == text
    assert plain.usage.completion_tokens == direct["usage"]["completion_tokens"]
    assert plain.usage.prompt_tokens == direct["usage"]["prompt_tokens"]


def test_a_stream_has_one_identity_one_role_and_one_finish(client):
    chunks = list(client.chat.completions.create(model="tiny", messages=WORDS, max_tokens=12, temperature=0, stream=True))
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert chunks[0].model == "tiny"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert sum(1 for c in chunks for choice in c.choices if choice.delta.role) == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert all(c.usage is None for c in chunks), "usage that nobody asked for"
    assert all(c.choices for c in chunks), "a chunk without choices that nobody asked for"


def test_a_stream_with_include_usage_ends_in_one_usage_chunk(client):
    chunks = list(client.chat.completions.create(
        model="tiny", messages=WORDS, max_tokens=12, stream=True, stream_options={"include_usage": True}
    ))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(c.usage is None and c.choices for c in chunks[:-1])


def test_several_choices_come_back_with_their_indexes(client):
    answer = client.chat.completions.create(model="tiny", messages=WORDS, max_tokens=6, n=2, temperature=1)
    assert sorted(c.index for c in answer.choices) == [0, 1]
    seen = set()
    for chunk in client.chat.completions.create(model="tiny", messages=WORDS, max_tokens=6, n=2, stream=True):
        seen.update(choice.index for choice in chunk.choices)
    assert seen == {0, 1}


def test_logprobs_are_passed_through(client):
    answer = client.chat.completions.create(
        model="tiny", messages=WORDS, max_tokens=4, logprobs=True, top_logprobs=2, temperature=0
    )
    listed = answer.choices[0].logprobs.content
    assert len(listed) == 4 and all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in listed)


def test_a_stop_word_ends_the_answer_before_it(client):
    ask = {"model": "tiny", "messages": WORDS, "max_tokens": 24, "temperature": 0}
    word = client.chat.completions.create(**ask).choices[0].message.content.split()[3]
    stopped = client.chat.completions.create(**ask, stop=[" " + word])
    assert stopped.choices[0].finish_reason == "stop"
    assert word not in stopped.choices[0].message.content.split()


def test_json_mode_gives_json(client):
    answer = client.chat.completions.create(
        model="tiny", messages=WORDS, max_tokens=400, temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": {
            "type": "object", "required": ["risk"], "additionalProperties": False,
            "properties": {"risk": {"type": "integer", "minimum": 1, "maximum": 9}},
        }}},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert 1 <= json.loads(answer.choices[0].message.content)["risk"] <= 9


def test_parse_gives_a_typed_answer(client):
    from pydantic import BaseModel

    class Verdict(BaseModel):
        fraud: bool

    answer = client.chat.completions.parse(model="tiny", messages=WORDS, max_tokens=200, temperature=0, response_format=Verdict)
    assert isinstance(answer.choices[0].message.parsed, Verdict)


CALL = {
    "model": "caller", "messages": WORDS, "tools": [TOOL], "tool_choice": "required", "max_tokens": 300, "temperature": 0
}


def test_tool_calls_come_back_whole(client, zoo):
    direct = zoo.caller.post("/v1/chat/completions", CALL).json()["choices"][0]["message"]["tool_calls"]
    answer = client.chat.completions.create(**CALL)
    calls = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert all(call.type == "function" and call.id and set(json.loads(call.function.arguments)) == {"city"} for call in calls)
    assert [c.function.to_dict() for c in calls] == [c["function"] for c in direct]


def test_streamed_tool_calls_add_up_to_the_same_calls(client):
    whole = client.chat.completions.create(**CALL).choices[0].message.tool_calls
    calls, finish = {}, None
    for chunk in client.chat.completions.create(**CALL, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    assert finish == "tool_calls"
    assert [calls[i] for i in sorted(calls)] == [(c.function.name, c.function.arguments) for c in whole]


def test_the_stream_helper_accumulates_the_whole_answer(client):
    with client.chat.completions.stream(model="talker", messages=WORDS, temperature=0, max_tokens=400) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert "".join(deltas) == final.choices[0].message.content


def test_text_completions_work_plain_and_streamed(client):
    ask = {"model": "tiny", "prompt": "the", "max_tokens": 10, "temperature": 0}
    plain = client.completions.create(**ask)
    chunks = list(client.completions.create(**ask, stream=True))
    assert plain.object == "text_completion" and plain.usage.completion_tokens == 10
    assert "".join(c.choices[0].text for c in chunks if c.choices) == plain.choices[0].text
    assert len({c.id for c in chunks}) == 1


def test_embeddings_are_the_same_as_floats_and_as_base64(client):
    floats = client.embeddings.create(model="tiny", input=["one word", "two words"], encoding_format="float")
    assert [d.index for d in floats.data] == [0, 1] and len(floats.data[0].embedding) == 64
    raw = client.embeddings.with_raw_response.create(model="tiny", input=["one word", "two words"], encoding_format="base64")
    for one, two in zip(floats.data, json.loads(raw.content)["data"]):
        values = struct.unpack(f"<{len(one.embedding)}f", base64.b64decode(two["embedding"]))
        assert values == pytest.approx(one.embedding, abs=1e-6)


def test_a_response_is_created(client):
    answer = client.responses.create(model="tiny", input="say some words", max_output_tokens=8, temperature=0)
    assert answer.object == "response" and answer.status in ("completed", "incomplete")
    assert answer.output_text.split() and answer.usage.output_tokens == 8


def test_a_streamed_response_ends_in_its_final_event(client):
    events = list(client.responses.create(model="tiny", input="say some words", max_output_tokens=8, temperature=0, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text.split()
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")


def test_the_responses_stream_helper_accumulates(client):
    with client.responses.stream(model="tiny", input="say some words", max_output_tokens=8, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text and text.split()


def test_a_decision_is_made(gateway_of_zoo):
    asked = {"model": "decider", "state": "a payment of 9000 at night", "questions": {
        "act": {"type": "choice", "instructions": "what now?", "criteria": {"stop": None, "pass": None}},
        "risk": {"type": "score", "instructions": "how bad?", "criteria": ["low", "mid", "high"]},
    }}
    answer = gateway_of_zoo.post("/v1/systemone", asked)
    assert answer.status == 200, answer
    assert answer.json()["answers"]["act"]["choice"] in ("stop", "pass")


def test_models_are_the_union_and_each_can_be_retrieved(client):
    listed = {m.id: m for m in client.models.list()}
    assert {"tiny", "caller", "talker", "decider"} <= set(listed)
    assert all(m.object == "model" and isinstance(m.created, int) and m.owned_by for m in listed.values())
    assert client.models.retrieve("tiny").id == "tiny"


def test_an_alias_is_served_under_the_name_the_client_asked_for(client):
    plain = client.chat.completions.create(model="words", messages=WORDS, max_tokens=4)
    assert plain.model == "words"
    chunks = list(client.chat.completions.create(model="words", messages=WORDS, max_tokens=4, stream=True))
    assert {c.model for c in chunks} == {"words"}
    assert "words" in {m.id for m in client.models.list()}


def test_an_unknown_model_is_a_typed_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=WORDS)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_a_typed_authentication_error(zoo, gateway_of_zoo):
    stranger = openai.OpenAI(base_url=gateway_of_zoo.url + "/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.chat.completions.create(model="tiny", messages=WORDS)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_prompt_beyond_the_context_is_a_typed_bad_request(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "word " * 6000}], max_tokens=4, stream=stream
        )
    assert caught.value.code == "context_length_exceeded"


def test_what_the_engine_finds_wrong_is_a_typed_bad_request(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=WORDS, temperature="hot")
    assert caught.value.type == "invalid_request_error" and "temperature" in caught.value.message


def test_a_body_over_the_limit_is_a_typed_error(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.with_options(max_retries=0).chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * (18 << 20)}]
        )
    assert caught.value.status_code == 413


def test_an_unknown_path_is_a_typed_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(input="words")
    assert caught.value.code is None


async def test_the_async_client_runs_many_at_once(zoo, gateway_of_zoo):
    import asyncio

    async with openai.AsyncOpenAI(base_url=gateway_of_zoo.url + "/v1", api_key=gateway_of_zoo.key) as client:
        async def ask(i):
            answer = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": f"say {i} words"}], max_tokens=5 + i % 7
            )
            return answer.usage.completion_tokens

        assert await asyncio.gather(*(ask(i) for i in range(40))) == [5 + i % 7 for i in range(40)]
