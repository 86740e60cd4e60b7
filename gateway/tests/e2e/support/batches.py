"""Files and batches as tests of the official Python client make and read them."""
import io
import json

import openai

from .deadline import eventually
from .gateway import KEY

CHAT, TEXT, VECTORS, RESPONSES, DECISIONS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/systemone",
)
TERMINAL = ("completed", "failed", "expired", "cancelled")


def entry(custom_id, body, url=CHAT, method="POST"):
    """A line of an input file, without its end."""
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body})


def asking(text, model="tiny", tokens=6, **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, **more}


def chats(count, model="tiny", tokens=6):
    return {f"request-{n}": asking(f"say {n} words", model, tokens) for n in range(count)}


def client_of(gateway, key=KEY):
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0)


def upload(client, lines):
    text = "".join(line + "\n" for line in lines)
    return client.files.create(file=("night.jsonl", io.BytesIO(text.encode())), purpose="batch").id


def begin(client, bodies, endpoint=CHAT, window="24h", **more):
    file = upload(client, [entry(name, body, endpoint) for name, body in bodies.items()])
    return client.batches.create(input_file_id=file, endpoint=endpoint, completion_window=window, **more)


def ended(client, batch, within=60):
    def shown():
        seen = client.batches.retrieve(batch.id)
        assert seen.status in TERMINAL, seen
        return seen

    return eventually(shown, within=within, what="the batch's end", every=0.1)


def read(client, file):
    """The lines of an output or error file, by their custom ids."""
    if file is None:
        return {}
    lines = [json.loads(line) for line in client.files.content(file).text.splitlines()]
    assert lines, "a file that is there has lines"
    assert all(set(line) == {"id", "custom_id", "response", "error"} for line in lines)
    assert len({line["id"] for line in lines}) == len(lines)
    by_name = {line["custom_id"]: line for line in lines}
    assert len(by_name) == len(lines), "a line is there twice"
    return by_name


def results(client, batch, names):
    """Both files of a batch that has ended: each line is in exactly one of them, and they are as many as it says."""
    output, errors = read(client, batch.output_file_id), read(client, batch.error_file_id)
    assert not set(output) & set(errors) and set(output) | set(errors) == set(names)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (len(names), len(output), len(errors))
    assert all(line["error"] is None and line["response"]["status_code"] == 200 for line in output.values())
    return output, errors


def waits_for(client, batch, what):
    def waits():
        seen = client.batches.retrieve(batch.id).to_dict()["huntgroup"]
        assert seen["waiting_for"] == what, seen
        return True

    eventually(waits, within=20, what=f"a batch that waits for {what}", every=0.1)


def content(line):
    return line["response"]["body"]["choices"][0]["message"]["content"]
