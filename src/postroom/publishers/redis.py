"""Streams of Redis, Valkey and whatever else speaks their protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ExecAbortError, RedisError, ResponseError

from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from ..failures import describe, is_unavailable
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import redact
from ..wire import tls
from ..wire.envelope import CONTENT_TYPE, DEFAULT_SOURCE, Envelope
from ..wire.findings import finding
from ..wire.lanes import Lanes, pieces
from ..wire.options import positive, take, truth, unusable
from ..wire.template import names_for, template

OPTIONS = {
    "stream": str,
    "maxlen": positive,
    "exact": truth,
    "payload": str,
    "format": str,
    "source": str,
    **tls.OPTIONS,
}
THEIRS = ("client_name", "db", "username", "password")
"""What the URL may say to the client."""

UNAVAILABLE = frozenset({"ASK", "BUSY", "CROSSSLOT", "MISCONF", "MOVED", "NOAUTH", "NOREPLICAS", "WRONGTYPE"})
"""Answers that are about the server or the stream, beside those that the client has classes for."""

SCHEMES = {"valkey": "redis", "valkeys": "rediss"}

CONNECT_TIMEOUT = 10.0
REMEDY = "check the address, the user and the password in the URL, and whether the server runs and takes writes"

LARGEST_PIECE = 4 * 1024 * 1024
"""Bytes of payload that are sent and answered for together."""

Blocks = dict[str, list[tuple[Message, list[Any]]]]
"""By stream: what goes there in one transaction, and the commands."""


class RedisPublisher:
    """`redis://host:6379/0`, `rediss://…` with TLS, `unix:///path`: one entry per message, appended with XADD.

    `stream`: a template, `{topic}` unless given. `maxlen`: about how long a stream may become; `exact`: exactly.
    An entry has a field for each header, `content-type`, and `payload`, or whatever `payload` names instead.

    What goes to one stream is one transaction (MULTI, EXEC), so of a key either all arrives or nothing.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        stream: str = "{topic}",
        maxlen: int | None = None,
        exact: bool = False,
        payload: str = "payload",
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
    ) -> None:
        place, given = take(url, OPTIONS, THEIRS)
        self.name = redact(place)
        self._make_pool = _pool(place, url, given)
        stream = given.get("stream", stream)
        self._stream = template("stream", stream)
        # Of one key everything must go to one stream for its order to mean anything.
        self.features = Features(ordered="{type}" not in stream)
        maxlen, exact = given.get("maxlen", maxlen), given.get("exact", exact)
        self._limit = () if maxlen is None else (b"MAXLEN", b"=" if exact else b"~", str(maxlen).encode())
        self._payload = given.get("payload", payload)
        self._envelope = Envelope(given.get("format", format), given.get("source", source))
        self._connections = Connections(self._make_pool)

    async def publish(self, batch: Batch) -> None:
        lanes = Lanes(batch)
        for piece in pieces(batch.messages, LARGEST_PIECE):
            if lanes.may_start(piece) and (blocks := self._blocks(piece, lanes)):
                await self._send(blocks, lanes)

    async def close(self) -> None:
        await self._connections.close()

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        """A stream that is not there is made by the first message; something else of that name is in the way."""
        streams = sorted(names_for(self._stream, topics))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                found = await self._ask([[b"PING"], *([b"TYPE", stream] for stream in streams)])
        except Exception as error:
            return [finding("problem", f"{self.name}: {describe(error)}", REMEDY)]
        others = [name for name, kind in zip(streams, found[1:], strict=True) if kind not in (b"none", b"stream")]
        if others:
            remedy = "choose another name with stream=, or remove what is there"
            return [finding("problem", f"{self.name}: {others[0]} is something else than a stream", remedy)]
        return [finding("ok", f"{self.name} answers")]

    async def _ask(self, commands: list[list[Any]]) -> list[object]:
        connection = await self._connections.take()
        try:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            answers = [cast(object, await connection.read_response()) for _ in commands]
        except BaseException:
            await self._connections.drop(connection)
            raise
        self._connections.give_back(connection)
        return answers

    def _blocks(self, messages: Sequence[Message], lanes: Lanes) -> Blocks:
        blocks: Blocks = {}
        for message in lanes.open(messages):
            try:
                name = self._stream(message)
                command = [b"XADD", name.encode(), *self._limit, b"*", *self._fields(message)]
            except MessageRejected as error:
                lanes.answer(message, error)
            except UnicodeEncodeError as error:
                lanes.answer(message, MessageRejected(f"it cannot be sent like this: {error}", permanent=True))
            else:
                blocks.setdefault(name, []).append((message, command))
        return blocks

    def _fields(self, message: Message) -> Iterator[bytes]:
        headers, payload, content_type = self._envelope.wrap(message)
        if self._payload in headers:
            raise MessageRejected(
                f"its header {self._payload!r} has the name of the field for the payload; choose another with payload=",
                permanent=True,
            )
        if content_type is not None:
            headers[CONTENT_TYPE] = content_type
        for name, value in headers.items():
            yield name.encode()
            yield value.encode()
        if payload is not None:
            yield self._payload.encode()
            yield payload

    async def _send(self, blocks: Blocks, lanes: Lanes) -> None:
        """All transactions at once, then the answers in the same order."""
        commands = [
            command for block in blocks.values() for command in ([b"MULTI"], *(each for _, each in block), [b"EXEC"])
        ]
        connection = await self._connections.take()
        try:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            for block in blocks.values():
                await self._read(connection, [message for message, _ in block], lanes)
        except BaseException:
            await self._connections.drop(connection)
            raise
        self._connections.give_back(connection)

    async def _read(self, connection: AbstractConnection, messages: Sequence[Message], lanes: Lanes) -> None:
        refused: dict[int, ResponseError] = {}
        for number in range(-1, len(messages)):  # MULTI itself, and each command
            try:
                await connection.read_response()
            except ResponseError as error:
                refused[number] = error
        try:
            answers = cast("list[object]", await connection.read_response())
        except ExecAbortError as error:
            self._nothing_done(messages, refused or {-1: error}, lanes)
            return
        for message, answer in zip(messages, answers, strict=True):
            lanes.answer(message, _judged(answer) if isinstance(answer, ResponseError) else None)

    def _nothing_done(self, messages: Sequence[Message], refused: dict[int, ResponseError], lanes: Lanes) -> None:
        """One bad command spoils the transaction: who is to blame is told so, and the others may try again."""
        errors = {number: _judged(error) for number, error in refused.items()}
        outage = next((error for error in errors.values() if isinstance(error, DestinationUnavailable)), None)
        for number, message in enumerate(messages):
            lanes.answer(
                message, outage or errors.get(number) or NotAttempted("another message spoiled its transaction")
            )


def _judged(error: ResponseError) -> Exception:
    if is_unavailable(error) or str(error).partition(" ")[0] in UNAVAILABLE:
        return DestinationUnavailable(describe(error))
    return MessageRejected(describe(error))


# --- connections


def _pool(place: str, url: str, given: Mapping[str, Any]) -> Callable[[], ConnectionPool]:
    scheme, _, rest = place.partition("://")
    scheme = SCHEMES.get(scheme, scheme)
    place = f"{scheme}://{rest}"
    path = rest.partition("?")[0].partition("/")[2]
    if scheme != "unix" and path and not (path.isascii() and path.isdigit()):
        raise unusable(url, f"has {path!r} where the number of a database is expected, as in 'redis://localhost/0'")
    if scheme != "rediss" and (lonely := [name for name in tls.OPTIONS if name in given]):
        raise ConfigurationError(f"{lonely[0]} is for TLS: write 'rediss://' or 'valkeys://'")
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT,
    }
    if scheme != "unix":
        options["socket_keepalive"] = True
    if scheme == "rediss":
        tls.context(given)  # what cannot be used is told now
        is_verified = given.get("ssl_verify", True)
        options |= {
            "ssl_ca_certs": given.get("ssl_ca"),
            "ssl_certfile": given.get("ssl_cert"),
            "ssl_keyfile": given.get("ssl_key"),
            "ssl_cert_reqs": "required" if is_verified else "none",
            "ssl_check_hostname": is_verified,
        }

    def make() -> ConnectionPool:
        return ConnectionPool.from_url(place, **options)  # pyright: ignore[reportUnknownMemberType]

    try:
        make()
    except (ValueError, TypeError) as error:
        raise unusable(url, f"is no address of Redis: {error}") from None
    return make


class Connections:
    """As many as are needed at once. They belong to one event loop, and are made anew on another."""

    def __init__(self, make_pool: Callable[[], ConnectionPool]) -> None:
        self._make_pool = make_pool
        self._pool: ConnectionPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spare: list[AbstractConnection] = []
        self._transports: dict[AbstractConnection, asyncio.Transport] = {}

    async def take(self) -> AbstractConnection:
        loop = asyncio.get_running_loop()
        if self._pool is None or self._loop is not loop:
            self._pool, self._loop, self._spare, self._transports = self._make_pool(), loop, [], {}
        while self._spare:
            connection = self._spare.pop()
            if _is_there(connection):
                return connection
            await self.drop(connection)
        connection = self._pool.make_connection()
        try:
            await connection.connect()
            await _try_a_transaction(connection)
        except RedisError as error:  # whatever it says: nobody has sent anything yet
            await self.drop(connection)
            raise DestinationUnavailable(describe(error)) from error
        except BaseException:
            await self.drop(connection)
            raise
        self._transports[connection] = cast(Any, connection)._writer.transport
        return connection

    def give_back(self, connection: AbstractConnection) -> None:
        self._spare.append(connection)

    async def drop(self, connection: AbstractConnection) -> None:
        """Nothing more may leave it. What broke one probably broke the others."""
        spare, self._spare = self._spare, []
        for each in (connection, *spare):
            if (transport := self._transports.pop(each, None)) is not None:
                transport.abort()  # the client would still send what it has
            await each.disconnect(nowait=True)

    async def close(self) -> None:
        spare, self._spare = self._spare, []
        for connection in spare:
            self._transports.pop(connection, None)
            await connection.disconnect(nowait=True)


async def _try_a_transaction(connection: AbstractConnection) -> None:
    """An empty one. Were MULTI refused, by a proxy or for want of rights, what comes after it would be done, again
    whenever it is tried."""
    for command in (b"MULTI", b"EXEC"):
        await connection.send_packed_command(connection.pack_command(command), check_health=False)
        await connection.read_response()


def _is_there(connection: AbstractConnection) -> bool:
    """Whether the server has not hung up meanwhile, as it does on those that say nothing for long."""
    reader: asyncio.StreamReader | None = cast(Any, connection)._reader
    return reader is not None and not reader.at_eof()
