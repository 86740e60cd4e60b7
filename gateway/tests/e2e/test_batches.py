"""Batches as the official Python client runs them, on real engines: every line is answered as the same request is when it is asked directly."""
import datetime
import errno
import json
import os
import pathlib
import shutil
import subprocess

import openai
import pytest

from support.batches import (
    CHAT, DECISIONS, RESPONSES, TEXT, VECTORS, asking, begin, chats, client_of, content, ended, entry, read, results, upload, waits_for,
)
from support.deadline import eventually
from support.gateway import OTHER_KEY, SECRETS, binaries
from support.process import Process


def test_the_documented_flow(client, tmp_path):
    path = tmp_path / "batchinput.jsonl"
    bodies = chats(20)
    path.write_text("".join(entry(name, body) + "\n" for name, body in bodies.items()))

    with open(path, "rb") as opened:
        batch_input_file = client.files.create(file=opened, purpose="batch")
    batch = client.batches.create(
        input_file_id=batch_input_file.id, endpoint="/v1/chat/completions", completion_window="24h",
        metadata={"description": "nightly eval job"},
    )
    assert batch.status == "validating" and batch.output_file_id is None and batch.errors is None
    batch = ended(client, batch)
    assert batch.status == "completed" and batch.error_file_id is None and batch.metadata == {"description": "nightly eval job"}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at <= batch.expires_at
    file_response = client.files.content(batch.output_file_id)
    answers = {line["custom_id"]: line for line in map(json.loads, file_response.text.splitlines())}

    assert set(answers) == set(bodies)
    for name, body in bodies.items():
        direct = client.chat.completions.create(**body)
        answer = answers[name]["response"]["body"]
        assert answer["choices"][0]["message"]["content"] == direct.choices[0].message.content
        assert answer["choices"][0]["finish_reason"] == direct.choices[0].finish_reason
        assert answer["usage"]["completion_tokens"] == direct.usage.completion_tokens
        # The client's own types take it.
        assert openai.types.chat.ChatCompletion.model_validate(answer).model == "tiny"
    used = [line["response"]["body"]["usage"] for line in answers.values()]
    assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in used)
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in used)
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.bytes == len(file_response.content)
    for file in (batch_input_file.id, batch.output_file_id):
        client.files.delete(file)
    assert client.batches.retrieve(batch.id).output_file_id == batch.output_file_id


DECISION = {"model": "decider", "state": "a payment of 9000 at night", "questions": {
    "act": {"type": "choice", "instructions": "what now?", "criteria": {"stop": None, "pass": None}},
}}
ROUTES = {
    TEXT: ({"model": "tiny", "prompt": "the", "max_tokens": 7, "temperature": 0}, "prompt",
           lambda body: body["choices"][0]["text"], ("prompt_tokens", "completion_tokens")),
    VECTORS: ({"model": "tiny", "input": "one word"}, "input",
              lambda body: body["data"][0]["embedding"], ("prompt_tokens", None)),
    RESPONSES: ({"model": "tiny", "input": "say some words", "max_output_tokens": 7, "temperature": 0}, "input",
                lambda body: body["output"][0]["content"][0]["text"], ("input_tokens", "output_tokens")),
    DECISIONS: (DECISION, "state", lambda body: body["answers"]["act"]["choice"], None),
}


@pytest.mark.parametrize("endpoint", ROUTES)
def test_every_route_answers_in_a_batch_as_it_does_directly(client, gateway_of_zoo, endpoint):
    example, prompt, told, counted = ROUTES[endpoint]
    bodies = {f"request-{n}": {**example, prompt: f"{example[prompt]} {n}"} for n in range(6)}
    batch = ended(client, begin(client, bodies, endpoint))
    output, errors = results(client, batch, bodies)
    assert not errors and batch.endpoint == endpoint
    for name, body in bodies.items():
        direct = gateway_of_zoo.post(endpoint, body)
        assert direct.status == 200, direct
        answer = output[name]["response"]["body"]
        assert told(answer) == pytest.approx(told(direct.json()), abs=2e-5)
        assert set(answer) == set(direct.json())
    if counted:
        for total, member in zip((batch.usage.input_tokens, batch.usage.output_tokens), counted):
            assert total == sum(line["response"]["body"]["usage"][member] if member else 0 for line in output.values())


def test_good_lines_are_answered_beside_bad_ones(client):
    bad = {
        "too long": (asking("word " * 6000, tokens=4), "context_length_exceeded"),
        "a stream": (asking("hi", stream=True), "invalid_value"),
        "too hot": (asking("hi", temperature="hot"), None),
        "no messages": ({"model": "tiny", "messages": []}, None),
    }
    bodies = {**chats(8), **{name: body for name, (body, _) in bad.items()}}
    batch = ended(client, begin(client, bodies))
    assert batch.status == "completed"
    output, errors = results(client, batch, bodies)
    assert set(errors) == set(bad)
    for name, (_, code) in bad.items():
        response = errors[name]["response"]
        assert errors[name]["error"] is None and response["status_code"] == 400 and response["request_id"].startswith("req_")
        error = response["body"]["error"]
        assert set(error) >= {"message", "type", "param", "code"} and error["message"]
        assert code is None or error["code"] == code, error
    assert len(output) == 8


GOOD = entry("good", asking("hi"))
WRONG = {
    "no JSON": ([GOOD, '{"custom_id": "b",'], "invalid_json_line", 2, None),
    "a list": ([GOOD, "[]"], "invalid_json_line", 2, None),
    "no id": ([GOOD, json.dumps({"method": "POST", "url": CHAT, "body": asking("hi")})], "invalid_json_line", 2, "custom_id"),
    "the same id": ([GOOD, GOOD.replace("hi", "ho")], "duplicate_custom_id", 2, "custom_id"),
    "another route": ([GOOD, entry("b", asking("hi"), TEXT)], "url_mismatch", 2, "url"),
    "no route": ([GOOD, entry("b", asking("hi"), "/v1/moderations")], "invalid_url", 2, "url"),
    "a whole URL": ([GOOD, entry("b", asking("hi"), "https://api.openai.com/v1/chat/completions")], "invalid_url", 2, "url"),
    "another method": ([GOOD, "", entry("b", asking("hi"), method="GET")], "invalid_method", 3, "method"),
    "another model": ([GOOD, entry("b", asking("hi", "caller"))], "model_mismatch", 2, "body.model"),
    "no model": ([GOOD, entry("b", {"messages": []})], "invalid_json_line", 2, "body.model"),
    "nothing": ([], "empty_file", None, None),
    "too many": ([entry(f"request-{n}", asking("hi")) for n in range(50_001)], "too_many_tasks", 50_001, None),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_line_fails_the_batch_and_nothing_runs(client, gateway_of_zoo, mistake):
    lines, code, number, param = WRONG[mistake]
    before = gateway_of_zoo.metrics().sum("huntgroup_requests_total")
    file = upload(client, lines)
    batch = client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
    assert batch.status == "validating"
    batch = ended(client, batch)
    assert batch.status == "failed" and batch.failed_at >= batch.created_at and batch.in_progress_at is None
    assert batch.output_file_id is None and batch.error_file_id is None
    assert batch.errors.object == "list" and len(batch.errors.data) == 1
    told = batch.errors.data[0]
    assert (told.code, told.line, told.param) == (code, number, param) and told.message
    assert gateway_of_zoo.metrics().sum("huntgroup_requests_total") == before
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_all_mistakes_of_a_file_are_told_at_once(client):
    lines = [GOOD, "{", GOOD, entry("c", asking("hi"), method="PUT"), entry("d", asking("hi", "caller"))]
    batch = ended(client, client.batches.create(input_file_id=upload(client, lines), endpoint=CHAT, completion_window="24h"))
    assert [(told.code, told.line) for told in batch.errors.data] == [
        ("invalid_json_line", 2), ("duplicate_custom_id", 3), ("invalid_method", 4), ("model_mismatch", 5),
    ]


def test_lines_that_look_strange_are_read_right(client):
    """Another system's line ends, the mark of the encoding, empty lines, no end at the end; names that need escaping, and the longest."""
    names = ['say "it"', "tab\tand\nline", "Ünï-çødé 🐴", "line\u2028separator", "x" * 512, "🐴" * 128]
    text = "\ufeff" + "\r\n\r\n".join(entry(name, asking(f"words {n}")) for n, name in enumerate(names))
    file = client.files.create(file=("windows.jsonl", text.encode()), purpose="batch").id
    batch = ended(client, client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h"))
    output, errors = results(client, batch, names)
    assert not errors and set(output) == set(names)


def test_an_engine_killed_in_the_middle_costs_no_line(stage):
    pair = [stage.llama(model="slow", slots=1) for _ in range(2)]
    gateway = stage.gateway(pair)
    bodies = chats(16, "slow", tokens=24)
    with client_of(gateway) as client:
        batch = begin(client, bodies)
        eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3, within=60, what="some lines")
        victim = eventually(lambda: next((e for e in pair if e.busy()), None), within=20, what="an engine at work")
        victim.kill()
        survivor = next(engine for engine in pair if engine is not victim)
        batch = ended(client, batch, within=120)
        output, errors = results(client, batch, bodies)
        assert not errors and batch.status == "completed"
        for name in ("request-0", "request-7", "request-15"):
            direct = survivor.post(CHAT, bodies[name]).json()["choices"][0]["message"]["content"]
            assert content(output[name]) == direct


@pytest.mark.parametrize("known", [True, False], ids=["a known model", "a model that nobody has heard of"])
def test_a_batch_waits_for_a_phone_that_comes_later(stage, known):
    gateway = stage.gateway(config={"models": {"tiny": {"aliases": ["words"]}}} if known else {})
    bodies = chats(5)
    with client_of(gateway) as client:
        batch = begin(client, bodies)
        waits_for(client, batch, "replica")
        seen = client.batches.retrieve(batch.id)
        assert seen.status == "in_progress" and seen.request_counts.total == 5 and seen.request_counts.completed == 0
        late = stage.llama(model="tiny")
        assert gateway.manage("POST", "/admin/replicas", {"url": late.url}).status in (200, 201)
        batch = ended(client, batch)
        output, errors = results(client, batch, bodies)
        assert len(output) == 5 and not errors


def test_a_tenant_sees_nothing_of_anothers_batches(client, gateway_of_zoo):
    bodies = chats(3)
    batch = ended(client, begin(client, bodies))
    assert batch.status == "completed"
    with client_of(gateway_of_zoo, OTHER_KEY) as stranger:
        files = (batch.input_file_id, batch.output_file_id)
        for ask in (
            *(lambda file=file: stranger.files.retrieve(file) for file in files),
            *(lambda file=file: stranger.files.content(file) for file in files),
            *(lambda file=file: stranger.files.delete(file) for file in files),
            lambda: stranger.batches.retrieve(batch.id), lambda: stranger.batches.cancel(batch.id),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        for file in files:
            with pytest.raises(openai.BadRequestError) as caught:
                stranger.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
            assert caught.value.code == "invalid_input_file"
        own = ended(stranger, begin(stranger, chats(2)))
        assert [one.id for one in stranger.batches.list()] == [own.id]
        assert {file.id for file in stranger.files.list()} == {own.input_file_id, own.output_file_id}
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(own.id)
    # Results are no requests.
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(input_file_id=batch.output_file_id, endpoint=CHAT, completion_window="24h")
    assert caught.value.code == "invalid_input_file" and "batch_output" in caught.value.message
    assert len(read(client, batch.output_file_id)) == 3


def key_of(gateway, tenant):
    made = gateway.manage("POST", "/admin/keys", {"tenant": tenant})
    assert made.status in (200, 201), made
    return made.json()["key"]


@pytest.fixture
def bound(stage):
    """One slow engine, a tenant that may use another model only, and one that may not be urgent."""
    tenants = {"narrow": {"models": ["caller"]}, "patient": {"class": "batch", "max_class": "batch"}}
    return stage.gateway([stage.llama(model="slow", slots=1)], config={"tenants": tenants})


def test_a_batch_may_use_what_its_key_may(bound):
    with client_of(bound, key_of(bound, "narrow")) as client:
        batch = ended(client, begin(client, chats(2, "slow")))
        assert batch.status == "failed"
        assert [(told.code, told.line, told.param) for told in batch.errors.data][:1] == [("model_not_allowed", 1, "body.model")]


def how(client, batch):
    return client.batches.retrieve(batch.id).to_dict().get("huntgroup") or {}


def test_a_batch_whose_time_is_short_becomes_urgent_if_its_key_may(bound):
    # Far more than one slow engine does in the time.
    bodies = chats(400, "slow", tokens=32)
    with client_of(bound) as client, client_of(bound, key_of(bound, "patient")) as patient:
        hurried, bowed = begin(client, bodies, window="2m"), begin(patient, bodies, window="2m")
        eventually(lambda: how(client, hurried).get("class") == "standard", within=20, what="an urgent batch")
        eventually(lambda: bound.metrics().sum("huntgroup_requests_total", **{"class": "standard"}) >= 2, within=60,
                   what="urgent lines")
        assert how(patient, bowed)["class"] == "batch"
        calm = begin(client, chats(3, "slow"), window="7d")
        eventually(lambda: how(client, calm).get("class") == "batch", within=20, what="a batch that has time")
        for owner, batch in ((client, hurried), (patient, bowed), (client, calm)):
            owner.batches.cancel(batch.id)
        for owner, batch in ((client, hurried), (patient, bowed), (client, calm)):
            assert ended(owner, batch).status == "cancelled"


def test_an_expired_batch_has_all_its_lines_in_its_files(bound):
    bodies = chats(200, "slow", tokens=32)
    with client_of(bound) as client:
        batch = ended(client, begin(client, bodies, window="5s"))
        assert batch.status == "expired" and batch.expired_at - batch.expires_at <= 60
        output, errors = results(client, batch, bodies)
        assert errors and all(line["response"] is None and line["error"]["code"] == "batch_expired" for line in errors.values())


def hours_without_now():
    now = datetime.datetime.now(datetime.UTC)
    later = [now + datetime.timedelta(hours=hours) for hours in (6, 7)]
    return "-".join(moment.strftime("%H:%M") for moment in later)


def test_lines_are_begun_in_their_hours(stage):
    gateway = stage.gateway([stage.llama(model="tiny")], config={"batches": {"hours": [hours_without_now()]}})
    bodies = chats(6)
    with client_of(gateway) as client:
        batch = begin(client, bodies)
        waits_for(client, batch, "hours")
        assert client.batches.retrieve(batch.id).request_counts.completed == 0
        assert gateway.chat(max_tokens=2).status == 200, "others are served"
        gateway.config["batches"]["hours"] = []
        gateway.write_config()
        assert gateway.manage("POST", "/admin/reload").status == 200
        batch = ended(client, batch)
        assert batch.status == "completed" and len(results(client, batch, bodies)[0]) == 6


def succeeded(gateway):
    """Another process takes the gateway's place."""
    successor = Process(
        [binaries / "huntgroup", "serve", "--config", gateway.file, "--upgrade"], gateway.directory / "gateway.log",
        env={**os.environ, **SECRETS}, cwd=gateway.directory,
    )
    code = gateway.process.wait(60)
    gateway.process = successor
    assert code == 0, "the predecessor left when its work was done"


def test_a_reload_and_an_upgrade_in_the_middle_lose_nothing(stage, tmp_path):
    pair = [stage.llama(model="slow", slots=1) for _ in range(2)]
    gateway = stage.gateway(pair, config={
        "server": {"pid_file": str(tmp_path / "pid"), "upgrade_socket": str(tmp_path / "upgrade.sock")},
        "batches": {"lease": "2s"},
    })
    bodies = chats(40, "slow", tokens=16)
    with client_of(gateway) as client:
        batch = begin(client, bodies)

        def counted(at_least):
            eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= at_least, within=60, what=f"{at_least} lines")

        counted(2)
        gateway.config["batches"]["max_running"] = 50
        gateway.write_config()
        assert gateway.manage("POST", "/admin/reload").status == 200
        counted(4)
        before = client.batches.retrieve(batch.id).request_counts.completed
        succeeded(gateway)
        assert client.batches.retrieve(batch.id).request_counts.completed >= before
        batch = ended(client, batch, within=120)
        output, errors = results(client, batch, bodies)
        assert not errors and batch.status == "completed"


def may_mount():
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0


def fill(disk):
    """Writes what fits. Nobody but root can look into another's mounts, and whoever may mount here is root."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as out:
        for size in (1 << 20, 4096):
            try:
                while True:
                    out.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
    return filler


@pytest.mark.skipif(not may_mount(), reason="this system lets nobody mount a small disk")
def test_a_batch_waits_for_room_on_the_disk(stage, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    engine = stage.llama(model="slow", slots=2)
    gateway = stage.gateway(
        [engine], config={"batches": {"path": str(disk / "batches.db"), "lease": "2s"}},
        within=["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=96m tmpfs "$0" && exec "$@"', str(disk)],
    )
    bodies = chats(150, "slow", tokens=8)
    with client_of(gateway) as client:
        batch = begin(client, bodies)
        eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3, within=60, what="some lines")
        filler = fill(pathlib.Path(f"/proc/{gateway.process.pid}/root{disk}"))
        waits_for(client, batch, "disk")
        before = client.batches.retrieve(batch.id).request_counts
        written = eventually(lambda: not engine.busy() and engine.counters()[2], within=20, what="an idle engine")
        assert before.completed < before.total
        assert gateway.chat("slow", max_tokens=2).status == 200, "others are served"
        with pytest.raises(openai.APIStatusError) as caught:
            upload(client, [GOOD])
        assert caught.value.status_code == 507 and caught.value.code == "storage_full"
        assert engine.counters()[2] - written <= 8, "no line is begun that can't be stored"
        filler.unlink()
        batch = ended(client, batch, within=120)
        output, errors = results(client, batch, bodies)
        assert batch.status == "completed" and not errors


@pytest.mark.skipif(not may_mount(), reason="this system lets nobody mount a small disk")
def test_a_gateway_starts_beside_a_full_disk_and_takes_batches_when_there_is_room(stage, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    gateway = stage.gateway(
        stage.phones(1, model="tiny"), config={"batches": {"path": str(disk / "batches.db"), "lease": "2s"}},
        within=["unshare", "-rm", "sh", "-c",
                'mount -t tmpfs -o size=128m tmpfs "$0" && ! dd if=/dev/zero of="$0/filler" bs=64k 2>/dev/null && exec "$@"', str(disk)],
    )
    assert gateway.chat("tiny", max_tokens=2).status == 200, "others are served"
    refused = gateway.get("/v1/batches")
    assert refused.status == 503 and refused.json()["error"]["code"] == "storage_unavailable"
    pathlib.Path(f"/proc/{gateway.process.pid}/root{disk}/filler").unlink()
    eventually(lambda: gateway.get("/v1/batches").status == 200, within=20, what="the batches")
    with client_of(gateway) as client:
        bodies = chats(3, "tiny", tokens=4)
        batch = ended(client, begin(client, bodies))
        assert batch.status == "completed" and batch.request_counts.completed == 3
