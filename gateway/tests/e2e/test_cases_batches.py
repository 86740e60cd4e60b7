"""What users of such gateways report, and the answer ours must give: batches.

The number in a test's id is the report's. See support/cases.py.
"""
import pytest

from support.batches import CHAT, asking, begin, chats, client_of, content, ended, entry, read, results, upload
from support.cases import case, started
from support.deadline import eventually
from support.phones import expected_text

TOKENS = 6


def prompt(body):
    return body["messages"][0]["content"]


def assert_answered(output, bodies):
    """Every answer is whole, and of its own request."""
    for name, line in output.items():
        assert content(line) == expected_text(prompt(bodies[name]), TOKENS), name


def counted(client, batch, at_least, within=60):
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= at_least, within=within, what=f"{at_least} lines")


@case(15, "the lines of a cancelled batch leave their phones at once")
def test_a_cancel_reaches_the_phones(row, stage):
    phones = stage.phones(2, model="tiny", slots=1)
    gateway = stage.gateway(phones)
    for phone in phones:
        phone.fault("head_then_silence", seconds=60)
    bodies = chats(8)
    with client_of(gateway) as client:
        batch = begin(client, bodies)
        eventually(lambda: [phone.stats()["running_now"] for phone in phones] == [1, 1], within=20, what="phones at work")
        client.batches.cancel(batch.id)
        eventually(lambda: [phone.stats()["cancelled"] for phone in phones] == [1, 1], what="the hang-up at both phones")
        batch = ended(client, batch)
        assert batch.status == "cancelled"
        output, errors = results(client, batch, bodies)
        assert not output and all(line["error"]["code"] == "batch_cancelled" for line in errors.values())
    assert started(phones) == [1, 1]


@case(43, "tries of a line and attempts of the gateway do not multiply without end")
def test_a_line_that_fails_everywhere(row, stage):
    phones = stage.phones(3, model="tiny", slots=1)
    health = {"hard_failures": 100, "soft_failures": 100, "min_success_share": 0.0}
    gateway = stage.gateway(phones, config={"health": health, "scheduler": {"retry_share": 1.0}, "batches": {"max_tries": 2}})
    for phone in phones:
        phone.fault("status", code=503)
    bodies = chats(4)
    with client_of(gateway) as client:
        batch = ended(client, begin(client, bodies), within=120)
        output, errors = results(client, batch, bodies)
    assert batch.status == "completed" and not output
    assert all(line["response"]["status_code"] >= 500 and line["response"]["body"]["error"]["message"] for line in errors.values())
    # Two tries of three attempts each.
    assert sum(started(phones)) <= 4 * 2 * 3


@case(161, "two lines have two answers")
def test_every_line_is_run(row, stage):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    bodies = {"one": asking("alpha beta"), "two": asking("gamma delta")}
    with client_of(gateway) as client:
        batch = ended(client, begin(client, bodies))
        output, errors = results(client, batch, bodies)
    assert not errors and content(output["one"]) != content(output["two"])
    assert_answered(output, bodies)
    assert started(phones) == [2]


@case(163, "a thousand lines of which some fail have a thousand results")
def test_nothing_is_lost_between_the_files(row, stage):
    phones = stage.phones(4, model="tiny", slots=4)
    gateway = stage.gateway(phones)
    phones[0].fault("status", code=500, next=60)
    phones[1].fault("cut_after", chunks=2, next=60)
    bodies = chats(1000, tokens=TOKENS)
    for n in range(0, 1000, 10):
        bodies[f"request-{n}"] |= {"stream": True} if n % 20 else {"messages": []}
    with client_of(gateway) as client:
        batch = ended(client, begin(client, bodies), within=180)
        output, errors = results(client, batch, bodies)
        in_order = [list(read(client, file)) for file in (batch.output_file_id, batch.error_file_id)]
    assert batch.status == "completed"
    assert set(errors) == {f"request-{n}" for n in range(0, 1000, 10)}, "a phone's fault is no line's"
    assert_answered(output, bodies)
    for names in in_order:
        assert names == [name for name in bodies if name in names], "results stand in the order of their lines"


LINES = [entry(f"request-{n}", asking(f"say {n} words")).encode() for n in range(1, 1001)]


@case(165, "a broken line is told before anything runs")
@pytest.mark.parametrize("line, broken", [
    (500, b'{"custom_id": "request-500", "method": "POST"'), (500, b"not JSON at all"), (500, LINES[499].replace(b"500", b"\\ud800", 1)),
    (500, LINES[499].replace(b"500", b"\xff\xfe", 1)), (1000, LINES[999][:-20]),
], ids=["cut", "no-json", "half-a-surrogate", "no-utf-8", "cut-at-the-end"])
def test_a_broken_line(row, stage, line, broken):
    phones = stage.phones(1, model="tiny")
    gateway = stage.gateway(phones)
    lines = b"\n".join([*LINES[:line - 1], broken, *LINES[line:]])
    with client_of(gateway) as client:
        file = client.files.create(file=("night.jsonl", lines), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        batch = ended(client, batch)
    assert batch.status == "failed" and batch.request_counts.completed == 0
    assert [(told.code, told.line) for told in batch.errors.data] == [("invalid_json_line", line)]
    assert started(phones) == [0]


@case(167, "a batch whose gateway dies while it is looked at is looked at again")
@pytest.mark.parametrize("sound", [True, False], ids=["sound", "broken"])
def test_a_kill_while_validating(row, stage, sound):
    gateway = stage.gateway(config={"models": {"tiny": {"aliases": ["words"]}}, "batches": {"lease": "1s"}})
    lines = [entry(f"request-{n}", asking(f"say {n} words")) for n in range(1, 50_001)]
    if not sound:
        lines[-1] = lines[-1][:-1]
    with client_of(gateway) as client:
        file = upload(client, lines)
        batch = client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
        for _ in range(3):
            assert client.batches.retrieve(batch.id).status == "validating"
            gateway.process.kill()
            gateway.start()

        def looked_at():
            seen = client.batches.retrieve(batch.id)
            assert seen.status != "validating", seen
            return seen

        batch = eventually(looked_at, within=60, what="the end of the look")
        if sound:
            assert (batch.status, batch.request_counts.total, batch.request_counts.failed) == ("in_progress", 50_000, 0)
            client.batches.cancel(batch.id)
            batch = ended(client, batch)
            assert batch.status == "cancelled" and batch.request_counts.failed == 50_000
        else:
            assert batch.status == "failed"
            assert [(told.code, told.line) for told in batch.errors.data] == [("invalid_json_line", 50_000)]


@pytest.fixture
def twins(stage):
    """Two gateways over one database of batches, each with phones of its own."""
    shared = {
        "batches": {"path": str(stage.directory / "shared-batches.db"), "lease": "2s"},
        # One run of a line is one request to a phone.
        "scheduler": {"hedge": False, "give_back": False},
    }
    pairs = []
    for _ in range(2):
        phones = stage.phones(2, model="tiny", slots=2, speed="0.8b", time_scale=8)
        pairs.append((stage.gateway(phones, config=shared), phones))
    return pairs


@case(169, "two processes that share a batch run each line once")
def test_two_processes(row, twins):
    (first, its), (second, others) = twins
    bodies = chats(200, tokens=TOKENS)
    with client_of(first) as client, client_of(second) as other:
        batch = ended(other, begin(client, bodies), within=120)
        assert client.batches.retrieve(batch.id) == batch
        output, errors = results(client, batch, bodies)
    assert not errors and batch.status == "completed"
    assert_answered(output, bodies)
    assert sum(started(its)) + sum(started(others)) == 200


@case(169, "after a death no line is run again that has a result")
def test_a_killed_process(row, twins):
    (first, its), (second, others) = twins
    bodies = chats(300, tokens=TOKENS)
    with client_of(first) as client, client_of(second) as other:
        batch = begin(client, bodies)
        counted(other, batch, 40)
        first.process.kill()
        done = other.batches.retrieve(batch.id).request_counts.completed
        before = sum(started(its)) + sum(started(others))
        batch = ended(other, batch, within=120)
        output, errors = results(other, batch, bodies)
        after = sum(started(its)) + sum(started(others))
        first.start()
        assert client.batches.retrieve(batch.id) == batch
    assert not errors and batch.status == "completed"
    assert_answered(output, bodies)
    assert 40 <= done < 300 and after - before <= 300 - done


@case(175, "phones that die at random under a batch lose none of its lines")
def test_mortal_phones(row, stage):
    phones = stage.phones(4, model="tiny", slots=2, speed="0.8b", time_scale=8)
    gateway = stage.gateway(phones)
    for phone in phones[:3]:
        phone.fault("flap", up_s=2, down_s=1, random=True)
    bodies = chats(200, tokens=TOKENS)
    with client_of(gateway) as client:
        batch = ended(client, begin(client, bodies), within=180)
        output, errors = results(client, batch, bodies)
    assert not errors and batch.status == "completed"
    assert_answered(output, bodies)
