"""JSON lines to standard output or to a file."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import select
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOTSUP
from threading import Event, Lock
from typing import IO, Any, cast
from urllib.parse import unquote

from ..errors import ConfigurationError, DestinationUnavailable, NotAttempted
from ..message import Message
from ..ports import Batch, Features
from ..redact import redact
from ..wire.lanes import pieces
from ..wire.options import split, take, truth

try:
    import fcntl
except ImportError:  # Windows: one process per file
    fcntl = None

LARGEST_PIECE = 4 * 1024 * 1024
"""Bytes of payload that are written, flushed and answered for together."""

# A pipe that is ready takes this much without blocking.
_PIPE_CHUNK = 4096
_NEWLINE = ord("\n")

_JSON_TYPE = re.compile(r"\s*(?:[\w.-]+/json|[\w.-]+/[\w.-]+\+json)\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


# ------------------------------------------------------------------------------------------------------- a message


def line_of(message: Message) -> bytes:
    """A message as one line of JSON, with its newline.

    `payload` is the JSON value itself if the content type is JSON, else text if it is UTF-8, else `{"base64": …}`.
    """
    fields: dict[str, Any] = {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "type": message.type,
        "sequence": message.sequence,
        "attempt": message.attempt,
        "created_at": None if message.created_at is None else message.created_at.isoformat(),
        "content_type": message.content_type,
        "headers": message.wire_headers(),
    }
    return b'%s, "payload": %s}\n' % (_dumps(fields)[:-1], _payload(message))


def _payload(message: Message) -> bytes:
    if message.payload is None:
        return b"null"
    payload = bytes(message.payload)
    if message.content_type and _JSON_TYPE.fullmatch(message.content_type) and _is_json(payload):
        # Copied, not read and written anew: that would change numbers. Line ends in valid JSON are only space.
        return payload.replace(b"\r", b" ").replace(b"\n", b" ")
    try:
        return _dumps(payload.decode())
    except UnicodeDecodeError:
        return _dumps({"base64": base64.b64encode(payload).decode()})


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _dumps(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair: JSON can escape it, UTF-8 cannot hold it
        return json.dumps(value).encode()


# -------------------------------------------------------------------------------------------------------- writing


class _Permit:
    """Leave to write, asked for wherever a writer would have to wait: it ends with the time-out or with the call."""

    def __init__(self, timeout: float) -> None:
        # A little early: our reason says more than the relay's, which only knows that nothing was heard.
        self._end = time.monotonic() + 0.9 * timeout
        self.revoked = Event()

    def pause(self, reason: str) -> float:
        """How many seconds to wait before asking again; raises when there is no leave any more."""
        rest = self._end - time.monotonic()
        if self.revoked.is_set() or rest <= 0:
            raise TimeoutError(f"gave up: {reason}")
        return min(rest, 0.02)


class _LinePublisher(ABC):
    """Writes in pieces, in a thread. After a failure nothing more is written, so that what arrived is a prefix."""

    features = Features(ordered=True)

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = Lock()

    async def publish(self, batch: Batch) -> None:
        failed = False
        for piece in pieces(batch.messages, LARGEST_PIECE):
            if failed:
                error = NotAttempted(f"what came before it could not be written to {self._name}")
            elif not batch.may_start():
                error = NotAttempted("there was no time left to start")
            else:
                error = await self._write_in_thread(batch, piece)
            failed = error is not None
            _answer(batch, piece, error)

    async def close(self) -> None:  # noqa: B027 - nothing to do is right for all of them
        """Nothing stays open between two calls of `publish`."""

    async def _write_in_thread(self, batch: Batch, piece: Sequence[Message]) -> BaseException | None:
        permit = _Permit(batch.timeout)
        work = asyncio.get_running_loop().run_in_executor(None, self._attempt, piece, permit)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread stops at its next wait. What it is just handing to the system must not outlive this call.
            permit.revoked.set()
            await asyncio.wait([work], timeout=batch.timeout)
            if work.done() and work.result() is None:
                _answer(batch, piece, None)
            raise

    def _attempt(self, piece: Sequence[Message], permit: _Permit) -> BaseException | None:
        data = b"".join(map(line_of, piece))
        try:
            with self._my_turn(permit):
                self._write(data, permit)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            return DestinationUnavailable(f"{self._name} cannot be written to: {error}")
        return None

    @contextmanager
    def _my_turn(self, permit: _Permit) -> Generator[None]:
        while not self._turn.acquire(timeout=permit.pause("another call is still writing")):
            pass
        try:
            yield
        finally:
            self._turn.release()

    @abstractmethod
    def _write(self, data: bytes, permit: _Permit) -> None:
        """Return when the operating system has all of it."""


def _answer(batch: Batch, messages: Sequence[Message], error: BaseException | None) -> None:
    for message in messages:
        batch.answer(message, error)


def _write_some(descriptor: int, data: memoryview, permit: _Permit) -> int:
    """Like `os.write`, but never blocks for longer than permitted: a pipe may have a reader that does not read."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.write(descriptor, data)
    _wait_until_writable(descriptor, permit)
    return os.write(descriptor, data[:_PIPE_CHUNK])


def _wait_until_writable(descriptor: int, permit: _Permit) -> None:
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(
        0
    ):  # also without leave, as long as there is no need to wait: better to end a line than to tear it
        while not poll.poll(1000 * permit.pause("its reader does not read")):
            pass


# ---------------------------------------------------------------------------------------------------- destinations


class StdoutPublisher(_LinePublisher):
    """`stdout:` writes JSON lines to standard output, or to the `stream` given. A line that could not be finished is
    ended before the next one begins."""

    def __init__(self, url: str = "stdout:", *, stream: IO[Any] | None = None) -> None:
        place, _ = split(url)
        if place.strip("/"):
            raise ConfigurationError(f"{redact(url)!r} does not name standard output; write 'stdout:'")
        super().__init__("standard output" if stream is None else repr(stream))
        self._stream = stream
        self._torn = False

    def _write(self, data: bytes, permit: _Permit) -> None:
        stream: IO[Any] | None = sys.stdout if self._stream is None else self._stream
        if stream is None:
            raise OSError("this process has none")
        stream.flush()
        whole = b"\n" + data if self._torn else data
        descriptor = _descriptor(stream)
        if descriptor is None:
            stream.write(cast(Any, whole.decode() if isinstance(stream, io.TextIOBase) else whole))
            stream.flush()
        else:
            self._write_to_descriptor(descriptor, memoryview(whole), permit)

    def _write_to_descriptor(self, descriptor: int, rest: memoryview, permit: _Permit) -> None:
        while rest:
            written = _write_some(descriptor, rest, permit)
            self._torn = rest[written - 1] != _NEWLINE
            rest = rest[written:]


class FilePublisher(_LinePublisher):
    """`file:///var/log/out.jsonl` or `file:out.jsonl` appends JSON lines to a file, which is created if need be.

    A batch is on the disk (fsync) before it is answered for; `?fsync=false` is content with the operating system having
    it. Several processes may write to one file. If the last line of the file was not finished, by a crash or a full
    disk, it is ended before the next one begins.
    """

    def __init__(self, url: str) -> None:
        place, options = take(url, {"fsync": truth})
        self.path = _path(place.partition(":")[2], url)
        self._fsync: bool = options.get("fsync", True)
        super().__init__(self.path)

    def _write(self, data: bytes, permit: _Permit) -> None:
        # Opened anew each time: a file that was rotated away, or a disk that came back, needs no restart.
        with _open_for_append(self.path) as descriptor:
            _lock(descriptor, permit)
            size = os.fstat(descriptor).st_size
            rest = memoryview(b"\n" + data if size and _is_torn(self.path) else data)
            while rest:
                rest = rest[_write_some(descriptor, rest, permit) :]
            if self._fsync:
                _sync(descriptor, None if size else os.path.dirname(self.path))


def _descriptor(stream: IO[Any]) -> int | None:
    try:
        return stream.fileno()
    except io.UnsupportedOperation:  # a stream in memory
        return None


@contextmanager
def _open_for_append(path: str) -> Generator[int]:
    # O_NONBLOCK: a named pipe without a reader is an error, not a wait for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, permit: _Permit) -> None:
    """Keep other processes out until the file is closed: one of them could be killed in the middle of a line, after we
    looked at the end of the file and before we write."""
    while fcntl is not None:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(permit.pause("another process holds the lock of the file") / 4)
        except OSError:
            return None  # the file system knows no locks
    return None


def _is_torn(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _sync(descriptor: int, directory: str | None) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (EINVAL, ENOTSUP):  # a device or a pipe has nothing to sync
            raise
    if directory is not None:
        _sync_entry(directory)


def _sync_entry(directory: str) -> None:
    """A new file survives a power cut only if its directory does. Not every system can do it."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _path(place: str, url: str) -> str:
    if place.startswith("//"):
        host, slash, place = place[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise ConfigurationError(
                f"{redact(url)!r} names the host {host!r}; write 'file:///path/out.jsonl' or 'file:out.jsonl'"
            )
        place = f"/{place}"
    path = unquote(place)
    if not path or path.endswith(("/", os.sep)) or "\0" in path:
        raise ConfigurationError(f"{redact(url)!r} names no file; write 'file:///path/out.jsonl' or 'file:out.jsonl'")
    # The place is settled now: a process may change its directory before the first message.
    return os.path.abspath(path)
