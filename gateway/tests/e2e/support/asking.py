"""The four ways of asking for text, by the official clients, streamed or plain; and what was said, in one form for all.

A test that holds for every API asks through this and compares `Said`s.
"""
import dataclasses
import json

import anthropic
import openai

WORDS = [{"role": "user", "content": "say some words"}]


@dataclasses.dataclass
class Said:
    """An answer as its client has it. `calls` are (name, arguments as read) in order; `tokens` is what usage says was written."""

    text: str = ""
    thoughts: str = ""
    calls: list = dataclasses.field(default_factory=list)
    finish: str | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    ids: set = dataclasses.field(default_factory=set)

    def bare(self):
        """What must be the same in two answers to the same question."""
        return self.text, self.thoughts, self.calls, self.finish, self.tokens, self.prompt_tokens


def chat(gateway, stream, model, messages=WORDS, headers=None, **fields):
    ask = {"model": model, "messages": messages, "temperature": 0, "extra_headers": headers, **fields}
    with sdk(gateway) as client:
        if not stream:
            answer = client.chat.completions.create(**ask)
            message = answer.choices[0].message
            calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
            return Said(
                message.content or "", getattr(message, "reasoning_content", None) or "", calls, answer.choices[0].finish_reason,
                answer.usage.completion_tokens, answer.usage.prompt_tokens, {answer.id},
            )
        said, calls = Said(), {}
        for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            said.ids.add(chunk.id)
            if chunk.usage:
                said.tokens, said.prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
            for choice in chunk.choices:
                assert said.finish is None, "more after the finish reason"
                said.text += choice.delta.content or ""
                said.thoughts += getattr(choice.delta, "reasoning_content", None) or ""
                said.finish = choice.finish_reason
                for call in choice.delta.tool_calls or []:
                    begun = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                    assert call.id in (None, begun["id"]), "a call changed its id"
                    begun["name"] += call.function.name or ""
                    begun["arguments"] += call.function.arguments or ""
        said.calls = [(calls[i]["name"], json.loads(calls[i]["arguments"])) for i in sorted(calls)]
        return said


def completion(gateway, stream, model, prompt="say some words", headers=None, **fields):
    ask = {"model": model, "prompt": prompt, "temperature": 0, "extra_headers": headers, **fields}
    with sdk(gateway) as client:
        if not stream:
            answer = client.completions.create(**ask)
            return Said(
                answer.choices[0].text, finish=answer.choices[0].finish_reason, tokens=answer.usage.completion_tokens,
                prompt_tokens=answer.usage.prompt_tokens, ids={answer.id},
            )
        said = Said()
        for chunk in client.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            said.ids.add(chunk.id)
            if chunk.usage:
                said.tokens, said.prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
            for choice in chunk.choices:
                said.text += choice.text or ""
                said.finish = choice.finish_reason or said.finish
        return said


def response(gateway, stream, model, headers=None, max_tokens=None, tools=None, **fields):
    ask = {"model": model, "input": "say some words", "temperature": 0, "max_output_tokens": max_tokens, "extra_headers": headers, **fields}
    if tools:
        ask["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
    with sdk(gateway) as client:
        if not stream:
            return _of_response(client.responses.create(**ask))
        deltas, last, numbers = "", None, []
        for event in client.responses.create(**ask, stream=True):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                deltas += event.delta
            if event.type in ("response.completed", "response.incomplete"):
                last = event.response
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "the events are not numbered in order"
        said = _of_response(last)
        assert said.text == deltas, "the last event tells another text than the deltas"
        return said


def _of_response(answer):
    said = Said(finish=answer.status, ids={answer.id}, tokens=answer.usage.output_tokens, prompt_tokens=answer.usage.input_tokens)
    for item in answer.output:
        if item.type == "message":
            said.text += "".join(part.text for part in item.content)
        elif item.type == "reasoning":
            said.thoughts += "".join(part.text for part in item.content or [])
        elif item.type == "function_call":
            said.calls.append((item.name, json.loads(item.arguments)))
    return said


def message(gateway, stream, model, messages=WORDS, headers=None, max_tokens=None, tools=None, **fields):
    # The client has no word for the temperature any more; engines do.
    sampling = {"extra_headers": headers, "extra_body": {"temperature": 0, **fields}}
    ask = {"model": model, "messages": messages, "max_tokens": max_tokens or 400, **sampling}
    if tools:
        functions = [tool["function"] for tool in tools]
        renamed = [{("input_schema" if key == "parameters" else key): value for key, value in f.items()} for f in functions]
        ask["tools"] = renamed
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=120) as client:
        if not stream:
            return _of_message(client.messages.create(**ask))
        with client.messages.stream(**ask) as events:
            deltas = "".join(events.text_stream)
            said = _of_message(events.get_final_message())
        assert said.text == deltas
        return said


def _of_message(answer):
    usage = answer.usage
    said = Said(finish=answer.stop_reason, ids={answer.id}, tokens=usage.output_tokens)
    said.prompt_tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    for block in answer.content:
        if block.type == "text":
            said.text += block.text
        elif block.type == "thinking":
            said.thoughts += block.thinking
        elif block.type == "tool_use":
            said.calls.append((block.name, block.input))
    return said


def sdk(gateway):
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=120)


ALL = {"chat": chat, "completions": completion, "responses": response, "messages": message}
