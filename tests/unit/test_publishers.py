"""The publishers that need nothing, beyond what the contract suite asks of all of them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom import registry
from postroom.errors import ConfigurationError
from postroom.failures import is_unavailable
from postroom.ports import Batch
from postroom.publishers import stream
from postroom.publishers.memory import MemoryPublisher
from postroom.publishers.stream import FilePublisher, StdoutPublisher, line_of
from postroom.wire.options import take
from tests.unit.publishing import JSON, kinds, message, messages, publish, run
from tests.waiting import until


@pytest.mark.parametrize("name", ["stdout", "file", "memory"])
def test_they_are_found_by_the_scheme_of_their_url(name: str) -> None:
    publisher = registry.load(registry.PUBLISHERS, name)("file:out.jsonl" if name == "file" else f"{name}:")
    assert publisher.features.ordered


async def test_the_stand_in_for_the_relay_gives_its_time_to_what_may_start_late() -> None:
    class Late(MemoryPublisher):
        async def publish(self, batch: Batch) -> None:
            began = time.monotonic()
            await until(lambda: time.monotonic() > began + batch.timeout)
            assert batch.may_start()
            await until(lambda: time.monotonic() > began + 1.5 * batch.timeout)
            await super().publish(batch)

    assert not (await publish(Late("memory:"), [message()], timeout=1.0)).failed


class TestLine:
    def payload_of(self, payload: Any, content_type: str | None = JSON) -> Any:
        return json.loads(line_of(message(payload=payload, content_type=content_type)))["payload"]

    def test_it_holds_what_a_consumer_needs(self) -> None:
        created_at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
        fields: dict[str, Any] = {"type": "Placed", "sequence": 3, "generation": 1, "attempt": 2, "headers": {"a": "ü"}}
        sent = message(created_at=created_at, **fields)
        assert json.loads(line_of(sent)) == {
            "id": sent.id,
            "topic": "orders",
            "key": "a",
            "type": "Placed",
            "sequence": 3,
            "attempt": 2,
            "created_at": "2030-01-02T03:04:05+00:00",
            "content_type": JSON,
            "headers": sent.wire_headers(),
            "payload": {},
        }

    @pytest.mark.parametrize("content_type", [JSON, "application/json; charset=utf-8", "application/cloudevents+json"])
    def test_json_stays_json(self, content_type: str) -> None:
        assert self.payload_of(b'{"a": [1, "\xc3\xbc"]}', content_type) == {"a": [1, "ü"]}

    def test_no_digit_of_json_changes(self) -> None:
        number = b"1.000000000000000000000000000000000001"
        assert number in line_of(message(payload=b'{"price": %s}' % number))

    def test_it_is_one_line(self) -> None:
        line = line_of(message(payload=b'{\n  "a": "x\\ny"\r\n}'))
        assert line.count(b"\n") == 1
        assert json.loads(line)["payload"] == {"a": "x\ny"}

    @pytest.mark.parametrize("payload", ["{", "NaN", "[1,]", "[" * 100_000, "\ufeff{}"])
    def test_what_only_claims_to_be_json_is_text(self, payload: str) -> None:
        assert self.payload_of(payload.encode()) == payload

    def test_other_text_is_text_and_the_rest_is_base64(self) -> None:
        assert self.payload_of(b'{"a": 1}', "text/plain") == '{"a": 1}'
        assert self.payload_of(b"", None) == ""
        assert self.payload_of(b"\xff\xfe") == {"base64": "//4="}
        assert self.payload_of(None) is None

    def test_half_a_character_does_no_harm(self) -> None:
        sent = message(headers={"name": "\ud83d"})
        assert json.loads(line_of(sent))["headers"]["name"] == "\ud83d"


class TestFile:
    async def test_lines_are_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        path.write_text("already here\n")
        sent = messages("ab")
        await publish(FilePublisher(f"file://{path}"), sent)
        assert path.read_bytes() == b"already here\n" + b"".join(map(line_of, sent))

    @pytest.mark.parametrize("rest", ["", '{"id": "torn', "\n"])
    async def test_a_line_cut_by_a_crash_does_not_spoil_the_next(self, tmp_path: Path, rest: str) -> None:
        path = tmp_path / "out.jsonl"
        path.write_text(f"whole\n{rest}")
        sent = message()
        await publish(FilePublisher(f"file://{path}"), [sent])
        assert path.read_bytes().splitlines()[-1] + b"\n" == line_of(sent)
        assert "".join(path.read_text().splitlines()[:-1]) == f"whole{rest}".replace("\n", "")

    @pytest.mark.parametrize(("option", "times"), [("", 2), ("?fsync=true", 2), ("?fsync=false", 0)])
    async def test_a_batch_is_synced_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, times: int
    ) -> None:
        synced: list[bool] = []
        monkeypatch.setattr(stream, "_sync", lambda descriptor, directory: synced.append(directory is not None))
        publisher = FilePublisher(f"file://{tmp_path}/out.jsonl{option}")
        for _ in range(2):
            await publish(publisher, messages("abc"))
        assert synced == [True, False][:times]

    async def test_a_batch_is_on_the_disk_before_it_is_answered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        batch = await publish(FilePublisher(f"file://{tmp_path}/out.jsonl"), messages("ab"))
        assert kinds(batch) == ["DestinationUnavailable"] * 2

    @pytest.mark.parametrize("place", ["missing/out.jsonl", "directory", "pipe"])
    async def test_a_file_that_cannot_be_written_is_an_outage_that_names_it(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "directory").mkdir()
        os.mkfifo(tmp_path / "pipe")
        batch = await publish(FilePublisher(f"file://{tmp_path / place}"), messages("ab"))
        assert kinds(batch) == ["DestinationUnavailable"] * 2
        assert str(tmp_path / place) in str(batch.error_of(batch.messages[0]))

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
    async def test_a_full_disk_is_an_outage(self) -> None:
        batch = await publish(FilePublisher("file:///dev/full"), messages("aab"))
        assert kinds(batch) == ["DestinationUnavailable"] * 3
        assert "No space left on device" in str(batch.error_of(batch.messages[0]))

    async def test_a_large_batch_goes_in_pieces_and_stops_at_the_first_that_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "LARGEST_PIECE", 4)
        path = tmp_path / "out.jsonl"
        publisher = FilePublisher(f"file://{path}")
        writes: list[int] = []

        def sync(descriptor: int, directory: str | None) -> None:
            writes.append(descriptor)
            if len(writes) == 2:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(stream, "_sync", sync)
        batch = await publish(publisher, messages("abcabca"))
        assert kinds(batch) == ["NoneType"] * 2 + ["DestinationUnavailable"] * 2 + ["NotAttempted"] * 3
        assert len(path.read_bytes().splitlines()) == 4

    async def test_several_processes_may_write_to_one_file(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        program = """if True:
            import asyncio, sys
            from postroom.message import Message
            from postroom.publishers.stream import FilePublisher
            from postroom.testing.batch import RecordingBatch, hand_over

            async def main():
                publisher = FilePublisher(f"file://{sys.argv[1]}?fsync=false")
                for _ in range(20):
                    batch = RecordingBatch([Message(topic="t", payload=b"x" * 5000) for _ in range(10)])
                    await hand_over(publisher, batch)
                    assert len(batch.delivered) == 10

            asyncio.run(main())
        """
        await asyncio.gather(*(asyncio.to_thread(run, program, str(path)) for _ in range(4)))
        ids = [json.loads(line)["id"] for line in path.read_bytes().splitlines()]
        assert len(set(ids)) == len(ids) == 800

    async def test_the_place_is_settled_when_it_is_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        publisher = FilePublisher("file:sub%20folder/out.jsonl")
        (tmp_path / "sub folder").mkdir()
        monkeypatch.chdir("/")
        assert not (await publish(publisher, [message()])).failed
        assert (tmp_path / "sub folder" / "out.jsonl").exists()

    @pytest.mark.parametrize("url", ["file:/tmp/x.jsonl", "file:///tmp/x.jsonl", "file://localhost/tmp/x.jsonl"])
    def test_an_absolute_path_may_be_written_in_three_ways(self, url: str) -> None:
        assert FilePublisher(url).path == "/tmp/x.jsonl"

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("file:", "names no file"),
            ("file:///tmp/", "names no file"),
            ("file:x%00y", "names no file"),
            ("file://tmp/x.jsonl", "names the host 'tmp'"),
            ("file:x?sync=1", "unknown option 'sync'; known: fsync"),
            ("file:x?fsync=maybe", "must be 'true' or 'false'"),
            ("file:x?fsync=true&fsync=false", "gives an option twice"),
        ],
    )
    def test_a_wrong_url_is_explained(self, url: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            FilePublisher(url)


class TestUrls:
    @pytest.mark.parametrize("end", "/?#")
    @pytest.mark.parametrize("scheme", ["amqp", "redis", "mqtt", "kafka", "https", "sqs"])
    def test_no_part_of_a_password_is_told_that_was_not_written_as_it_must_be(self, scheme: str, end: str) -> None:
        url = f"{scheme}://shop:head{end}tail@broker.example:1234"
        with pytest.raises(ConfigurationError) as raised:
            registry.load(registry.PUBLISHERS, scheme)(url)
        assert "head" not in str(raised.value)
        assert "tail" not in str(raised.value)

    def test_a_plus_sign_is_one(self) -> None:
        """Passwords and keys have them."""
        assert take("kafka://broker?sasl.password=a+b%20c&x=1%2B1", {"x": str}, ["sasl.password"]) == (
            "kafka://broker?sasl.password=a%2Bb%20c",
            {"x": "1+1"},
        )


class TestStdout:
    PROGRAM = """if True:
        import asyncio, sys
        from postroom.message import Message
        from postroom.publishers.stream import StdoutPublisher
        from postroom.testing.batch import RecordingBatch, hand_over

        messages = [Message(topic="t", payload=b"x" * 100_000, id=str(n)) for n in range(5)]
        print("before")
        batch = asyncio.run(hand_over(StdoutPublisher(), RecordingBatch(messages)))
        print([repr(error)[:100] for error in batch.answers.values()], file=sys.stderr)
    """

    def test_lines_go_to_the_standard_output_in_order(self) -> None:
        done = run(self.PROGRAM, stderr=subprocess.PIPE)
        first, *lines = done.stdout.splitlines()
        assert first == b"before"
        assert [json.loads(line)["id"] for line in lines] == ["0", "1", "2", "3", "4"]

    def test_a_reader_that_went_away_is_an_outage(self) -> None:
        command = [sys.executable, "-c", self.PROGRAM]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            errors = process.stderr.read().decode()
        assert process.returncode == 0
        assert errors.count("DestinationUnavailable") == 5
        assert "Broken pipe" in errors

    async def test_what_stands_in_for_it_is_respected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent = messages("ab")
        for stand_in in (io.StringIO(), io.TextIOWrapper(io.BytesIO()), io.BytesIO()):
            monkeypatch.setattr(sys, "stdout", stand_in)
            assert not (await publish(StdoutPublisher(), sent)).failed
            stand_in.seek(0)
            assert [json.loads(line)["id"] for line in stand_in] == [each.id for each in sent]

    async def test_a_process_without_one_has_an_outage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", None)
        assert kinds(await publish(StdoutPublisher(), [message()])) == ["DestinationUnavailable"]

    async def test_a_closed_one_is_an_outage(self) -> None:
        output = io.StringIO()
        output.close()
        assert kinds(await publish(StdoutPublisher(stream=output), [message()])) == ["DestinationUnavailable"]

    async def test_a_line_that_could_not_be_finished_is_ended_before_the_next(self) -> None:
        output, descriptor = os.pipe()
        with open(descriptor, "wb") as end, open(output, "rb") as reader:
            publisher = StdoutPublisher(stream=end)
            torn = message(payload=b"x" * 1_000_000)
            batch = await publish(publisher, [torn, message("b")], timeout=1.0)
            assert all(error is not None and is_unavailable(error) for error in batch.answers.values())
            data: list[bytes] = []
            reading = threading.Thread(target=lambda: data.extend(reader))
            reading.start()
            sent = messages("ab")
            assert not (await publish(publisher, sent)).failed
            end.close()
            reading.join()
        assert len(data) == 3
        assert data[1:] == [line_of(each) for each in sent]

    @pytest.mark.parametrize("url", ["stdout:", "stdout://"])
    def test_its_url_is_just_a_scheme(self, url: str) -> None:
        StdoutPublisher(url)

    @pytest.mark.parametrize(("url", "words"), [("stdout:x", "write 'stdout:'"), ("stdout:?a=1", "it knows none")])
    def test_a_wrong_url_is_explained(self, url: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            StdoutPublisher(url)


class TestMemory:
    async def test_it_keeps_what_it_is_told_to(self) -> None:
        sent = messages("abcde")
        for url, kept in (("memory:", sent), ("memory:?keep=2", sent[-2:]), ("memory:?keep=0", [])):
            publisher = MemoryPublisher(url)
            await publish(publisher, sent[:3])
            await publish(publisher, sent[3:])
            assert publisher.messages == kept
            assert publisher.count == 5

    async def test_it_fails_with_what_it_is_told(self) -> None:
        publisher = MemoryPublisher()
        publisher.fail_with(KeyError("x"))
        assert kinds(await publish(publisher, messages("aab"))) == ["KeyError"] * 3
        publisher.recover()
        publisher.reject(lambda message: message.key == "a", ValueError("y"))
        assert kinds(await publish(publisher, messages("aab"))) == ["ValueError", "NotAttempted", "NoneType"]
        publisher.recover()
        assert kinds(await publish(publisher, messages("aab"))) == ["NoneType"] * 3
        assert publisher.count == 4

    async def test_messages_without_a_key_are_refused_one_by_one(self) -> None:
        publisher = MemoryPublisher()
        sent = messages([None] * 3)
        publisher.reject(lambda message: message is sent[0])
        assert kinds(await publish(publisher, sent)) == ["MessageRejected", "NoneType", "NoneType"]

    @pytest.mark.parametrize(
        "url", ["memory:x", "memory:?keep=-1", "memory:?keep=", "memory:?keep=many", "memory:?size=1"]
    )
    def test_a_wrong_url_is_explained(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="keep"):
            MemoryPublisher(url)
