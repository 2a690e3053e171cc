"""Every publisher that needs nothing, through the suite that ships with the package."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import io
import json
import os
import select
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest

from postroom.errors import MessageRejected
from postroom.message import Message
from postroom.publishers.callable import CallablePublisher
from postroom.publishers.memory import MemoryPublisher
from postroom.publishers.stream import FilePublisher, StdoutPublisher
from postroom.testing.publisher_contract import PublisherContract, Received, RejectionContract


def as_received(message: Message) -> Received:
    return Received(
        id=message.id,
        topic=message.topic,
        key=message.key,
        payload=message.payload,
        headers=message.wire_headers(),
    )


def read_line(line: str) -> Received:
    fields = json.loads(line)
    return Received(
        id=fields["id"],
        topic=fields["topic"],
        key=fields["key"],
        payload=read_payload(fields["payload"]),
        headers=fields["headers"],
    )


def read_payload(payload: Any) -> bytes:
    if isinstance(payload, dict) and "base64" in payload:
        return base64.b64decode(payload["base64"])
    return payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()


class TestMemoryPublisher(PublisherContract, RejectionContract):
    async def make_publisher(self) -> MemoryPublisher:
        self.destination = MemoryPublisher("memory:")
        return self.destination

    async def received(self) -> list[Received]:
        return [as_received(message) for message in self.destination.messages]

    async def break_destination(self) -> None:
        self.destination.fail_with()

    async def hang_destination(self) -> None:
        self.destination.stall()

    async def mend_destination(self) -> None:
        self.destination.recover()

    async def reject(self, ids: Collection[str]) -> None:
        self.destination.reject(lambda message: message.id in ids)


class TestFilePublisher(PublisherContract):
    """Broken: in its place is a directory. Hanging: another process holds its lock."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "out.jsonl"
        self.file = tmp_path / "file"
        self.file.touch()
        self.lock: int | None = None
        self.point_to(self.file)

    def point_to(self, place: Path) -> None:
        """A link, because it can be replaced in one step while the publisher writes."""
        link = self.path.with_suffix(".new")
        link.symlink_to(place)
        link.replace(self.path)

    async def make_publisher(self) -> FilePublisher:
        return FilePublisher(f"file://{self.path}?fsync=false")

    async def received(self) -> list[Received]:
        return [read_line(line) for line in self.file.read_bytes().decode().split("\n")[:-1]]

    async def break_destination(self) -> None:
        self.point_to(self.path.parent)

    async def hang_destination(self) -> None:
        self.lock = os.open(self.file, os.O_WRONLY)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    async def mend_destination(self) -> None:
        self.point_to(self.file)
        if self.lock is not None:
            os.close(self.lock)


class Pipe:
    """A small pipe and a thread that reads from it."""

    def __init__(self) -> None:
        self.output, self.input = os.pipe()
        fcntl.fcntl(self.input, fcntl.F_SETPIPE_SZ, 4096)
        self.data = b""
        self.full = False
        self.reading = threading.Lock()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self) -> None:
        piece = b"\n"
        while piece:
            select.select([self.output], [], [])
            with self.reading:
                piece = os.read(self.output, 65536)
                self.data += piece

    def stop_reading(self) -> None:
        """Until `go_on_reading`, with a full pipe."""
        self.reading.acquire()
        self.full = True
        while select.select([], [self.input], [], 0)[1]:
            os.write(self.input, b"." * 4096)

    def go_on_reading(self) -> None:
        while select.select([self.output], [], [], 0)[0]:
            os.read(self.output, 65536)
        os.write(self.input, b"\n")  # the thread may be past `select` already
        self.full = False
        self.reading.release()

    def close(self) -> None:
        if self.full:
            self.go_on_reading()
        os.close(self.input)
        self.thread.join()
        os.close(self.output)


class SwitchedStream(io.RawIOBase):
    """A stream whose descriptor can be another one from one call to the next."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor


class TestStdoutPublisher(PublisherContract):
    """Through a real pipe. Broken: nobody has the other end open. Hanging: the reader does not read."""

    @pytest.fixture(autouse=True)
    def _pipe(self) -> Iterator[None]:
        self.pipe = Pipe()
        output, self.closed = os.pipe()
        os.close(output)
        self.stream = SwitchedStream(self.pipe.input)
        yield
        os.close(self.closed)
        self.pipe.close()

    async def make_publisher(self) -> StdoutPublisher:
        return StdoutPublisher("stdout:", stream=cast("IO[bytes]", self.stream))

    async def received(self) -> list[Received]:
        lines = self.pipe.data.decode().split("\n")[:-1]
        # A cancelled call may leave a torn line behind. Were it not ended, it would take a whole one with it.
        return [read_line(line) for line in lines if line.endswith("}")]

    async def break_destination(self) -> None:
        self.stream.descriptor = self.closed

    async def hang_destination(self) -> None:
        self.pipe.stop_reading()

    async def mend_destination(self) -> None:
        self.stream.descriptor = self.pipe.input
        if self.pipe.full:
            self.pipe.go_on_reading()


class CallableDestination:
    """What the functions below have in common."""

    @pytest.fixture(autouse=True)
    def _destination(self) -> None:
        self.taken: list[Message] = []
        self.broken = False
        self.refused: Collection[str] = ()

    def take(self, message: Message) -> None:
        if self.broken:
            raise ConnectionRefusedError("nobody is listening")
        if message.id in self.refused:
            raise MessageRejected("not this one")
        self.taken.append(message)

    async def received(self) -> list[Received]:
        return [as_received(message) for message in self.taken]

    async def break_destination(self) -> None:
        self.broken = True

    async def mend_destination(self) -> None:
        self.broken = False
        self.refused = ()

    async def reject(self, ids: Collection[str]) -> None:
        self.refused = ids


class TestSyncCallable(CallableDestination, PublisherContract, RejectionContract):
    @pytest.fixture(autouse=True)
    def _gate(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def handle(self, message: Message) -> None:
        if self.gate.is_set():
            self.take(message)
        else:
            self.gate.wait()  # and what was on its way is thrown away

    async def make_publisher(self) -> CallablePublisher:
        return CallablePublisher(self.handle, concurrency=8)

    async def hang_destination(self) -> None:
        self.gate.clear()

    async def mend_destination(self) -> None:
        await super().mend_destination()
        self.gate.set()


class TestAsyncCallable(CallableDestination, PublisherContract, RejectionContract):
    @pytest.fixture(autouse=True)
    def _gate(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, message: Message) -> None:
        if self.gate.is_set():
            self.take(message)
        else:
            await self.gate.wait()

    async def make_publisher(self) -> CallablePublisher:
        return CallablePublisher(self.handle, concurrency=8)

    async def hang_destination(self) -> None:
        self.gate.clear()

    async def mend_destination(self) -> None:
        await super().mend_destination()
        self.gate.set()
