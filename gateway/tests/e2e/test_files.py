"""The official Python client's files and batches, against a gateway without a phone: what does not take one."""
import io
import os

import openai
import pytest

from support.deadline import eventually
from support.gateway import KEY, OTHER_KEY
from support.process import may_mount

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi"}]}}\n'


@pytest.fixture(scope="module")
def lonely(shared_stage):
    """No phones; a model that is known all the same."""
    return shared_stage.gateway(config={"models": {"m": {"aliases": ["mm"]}}})


@pytest.fixture
def files_client(lonely):
    with openai.OpenAI(base_url=lonely.url + "/v1", api_key=KEY) as client:
        yield client


@pytest.fixture
def stranger(lonely):
    with openai.OpenAI(base_url=lonely.url + "/v1", api_key=OTHER_KEY) as client:
        yield client


def upload(client, content=LINE, name="night.jsonl", **more):
    return client.files.create(file=(name, content), purpose="batch", **more)


def test_a_file_is_created_shown_read_and_deleted(files_client, tmp_path):
    path = tmp_path / "naïve name.jsonl"
    path.write_bytes(LINE * 1000)
    made = files_client.files.create(file=path, purpose="batch")
    assert made.object == "file" and made.id.startswith("file-") and made.status == "processed"
    assert (made.filename, made.bytes, made.purpose) == ("naïve name.jsonl", 1000 * len(LINE), "batch")
    assert made.expires_at - made.created_at == 30 * 86400
    assert files_client.files.retrieve(made.id) == made
    content = files_client.files.content(made.id)
    assert content.read() == LINE * 1000
    files_client.files.content(made.id).write_to_file(tmp_path / "back.jsonl")
    assert (tmp_path / "back.jsonl").read_bytes() == LINE * 1000
    with files_client.files.with_streaming_response.content(made.id) as streamed:
        assert b"".join(streamed.iter_bytes()) == LINE * 1000
    assert files_client.files.content(made.id, extra_headers={"Range": "bytes=2-10"}).read() == LINE[2:11]
    assert files_client.files.wait_for_processing(made.id, max_wait_seconds=5).status == "processed"
    gone = files_client.files.delete(made.id)
    assert gone.deleted and gone.id == made.id
    with pytest.raises(openai.NotFoundError):
        files_client.files.retrieve(made.id)


def test_every_way_to_hand_over_a_file_works(files_client, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(LINE)
    with open(path, "rb") as opened:
        ways = [opened, path, ("in.jsonl", LINE), ("in.jsonl", io.BytesIO(LINE), "application/jsonl")]
        for way in ways:
            made = files_client.files.create(file=way, purpose="batch")
            assert (made.filename, made.bytes) == ("in.jsonl", len(LINE))
            files_client.files.delete(made.id)


def test_expiry_is_what_was_asked_for(files_client):
    made = upload(files_client, expires_after={"anchor": "created_at", "seconds": 7200})
    assert made.expires_at - made.created_at == 7200
    files_client.files.delete(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        upload(files_client, expires_after={"anchor": "created_at", "seconds": 60})
    assert caught.value.param == "expires_after[seconds]" and "3600" in caught.value.message


def test_lists_are_walked_page_by_page(files_client):
    made = [upload(files_client, name=f"{number}.jsonl").id for number in range(7)]
    assert [file.id for file in files_client.files.list(limit=2)] == made[::-1]
    assert [file.id for file in files_client.files.list(limit=3, order="asc", purpose="batch")] == made
    assert not list(files_client.files.list(purpose="batch_output"))
    page = files_client.files.list(limit=4)
    assert page.has_more and len(page.data) == 4
    # As people clean up: deleting what is being listed.
    for file in files_client.files.list(limit=2):
        files_client.files.delete(file.id)
    assert not list(files_client.files.list())


@pytest.mark.parametrize("file, purpose, param", [
    (("in.txt", LINE), "batch", "file"), (("in.jsonl", LINE), "fine-tune", "purpose"), (("in.jsonl", LINE), "user_data", "purpose"),
], ids=["another ending", "another purpose", "user data"])
def test_what_is_wrong_with_an_upload_is_a_typed_bad_request(files_client, file, purpose, param):
    with pytest.raises(openai.BadRequestError) as caught:
        files_client.files.create(file=file, purpose=purpose)
    assert caught.value.param == param and caught.value.type == "invalid_request_error"


def test_a_stranger_sees_nothing(files_client, stranger):
    file = upload(files_client)
    batch = files_client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for ask in (
        lambda: stranger.files.retrieve(file.id), lambda: stranger.files.content(file.id), lambda: stranger.files.delete(file.id),
        lambda: stranger.batches.retrieve(batch.id), lambda: stranger.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert not list(stranger.files.list()) and not list(stranger.batches.list())
    with pytest.raises(openai.BadRequestError) as caught:
        stranger.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert caught.value.code == "invalid_input_file"
    files_client.batches.cancel(batch.id)
    files_client.files.delete(file.id)


def test_batches_are_created_shown_listed_and_cancelled(files_client):
    file = upload(files_client)
    made = [
        files_client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"night": str(number)},
            output_expires_after={"anchor": "created_at", "seconds": 86400},
        )
        for number in range(5)
    ]
    first = made[0]
    assert first.object == "batch" and first.id.startswith("batch_") and first.status == "validating"
    assert first.expires_at - first.created_at == 86400 and first.metadata == {"night": "0"}
    assert first.request_counts.total == 0 and first.usage.total_tokens == 0
    assert first.to_dict()["huntgroup"]["running"] == 0
    again = files_client.batches.retrieve(first.id)
    assert (again.id, again.metadata, again.input_file_id) == (first.id, first.metadata, file.id)
    listed = [batch.id for batch in files_client.batches.list(limit=2)]
    assert listed[:5] == [batch.id for batch in reversed(made)]
    assert files_client.batches.list(limit=2).has_more
    for batch in made:
        assert files_client.batches.cancel(batch.id).status == "cancelling"
    files_client.files.delete(file.id)


@pytest.mark.parametrize("change, param", [
    ({"endpoint": "/v1/moderations"}, "endpoint"), ({"completion_window": "1y"}, "completion_window"),
    ({"input_file_id": "file-nothing"}, "input_file_id"), ({"metadata": {"k": "v" * 513}}, "metadata"),
], ids=["endpoint", "window", "file", "metadata"])
def test_what_is_wrong_with_a_batch_is_a_typed_bad_request(files_client, change, param):
    file = upload(files_client)
    asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
    with pytest.raises(openai.BadRequestError) as caught:
        files_client.batches.create(**asked)
    assert caught.value.param == param
    files_client.files.delete(file.id)


async def test_many_uploads_at_once_all_arrive(lonely):
    import asyncio

    async with openai.AsyncOpenAI(base_url=lonely.url + "/v1", api_key=KEY) as client:
        async def one(number):
            content = LINE * (1000 * number + 1)
            made = await client.files.create(file=(f"{number}.jsonl", content), purpose="batch")
            assert (await client.files.content(made.id)).read() == content
            await client.files.delete(made.id)

        await asyncio.gather(*(one(number) for number in range(12)))


@pytest.mark.skipif(not may_mount(), reason="this system lets nobody mount a small disk")
def test_a_full_disk_is_507_and_passes_with_it(stage, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    gateway = stage.gateway(
        config={"batches": {"path": str(disk / "batches.db")}},
        within=["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=112m tmpfs "$0" && exec "$@"', str(disk)],
    )
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=KEY) as client:
        kept = upload(client)
        with pytest.raises(openai.APIStatusError) as caught:
            upload(client, content=os.urandom(60 << 20))
        assert caught.value.status_code == 507 and caught.value.code == "storage_full"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert client.files.content(kept.id).read() == LINE
        assert [file.id for file in client.files.list()] == [kept.id]

        def there_is_room_again():
            try:
                client.files.delete(upload(client, content=LINE * 2000).id)
            except openai.APIStatusError as error:
                raise AssertionError(error.message) from error
            return True

        eventually(there_is_room_again, within=90, what="room on the disk", every=0.5)
