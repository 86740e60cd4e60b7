"""The official Anthropic client at /v1/messages."""
import anthropic
import pytest

ASK = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "say some words"}]}


@pytest.fixture(params=["api_key", "auth_token"])
def messages(request, gateway_of_zoo):
    with anthropic.Anthropic(base_url=gateway_of_zoo.url, **{request.param: gateway_of_zoo.key}, max_retries=0) as client:
        yield client.messages


def test_a_message_is_answered(messages):
    answer = messages.create(**ASK)
    assert answer.type == "message" and answer.role == "assistant" and answer.stop_reason == "max_tokens"
    assert answer.content[0].text.split() and answer.usage.output_tokens == 8 and answer.model == "tiny"


def test_a_streamed_message_ends_whole(messages):
    with messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text and final.stop_reason == "max_tokens"


def test_an_unknown_model_is_typed(messages):
    with pytest.raises(anthropic.NotFoundError):
        messages.create(**{**ASK, "model": "nobody"})
