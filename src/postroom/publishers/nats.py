"""JetStream, the part of NATS that keeps what it is given and says so."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import NoRespondersError, SecureConnWantedError

from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, MissingExtra
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import redact
from ..wire import tls
from ..wire.calls import Call
from ..wire.envelope import CONTENT_TYPE, DEFAULT_SOURCE, Envelope
from ..wire.findings import finding
from ..wire.lanes import Lanes, pieces
from ..wire.options import positive, take, truth, unusable
from ..wire.sessions import Sessions, Waiting, has_unsent
from ..wire.template import template

OPTIONS = {
    "subject": str,
    "domain": str,
    "pipelined": truth,
    "max_in_flight": positive,
    "format": str,
    "source": str,
    "creds": str,
    "tls": truth,
    **tls.OPTIONS,
}
SCHEMES = ("nats", "tls")
PORT = 4222
DEDUPE_HEADER = "Nats-Msg-Id"
NO_RESPONDERS = b"NATS/1.0 503"

CONNECT_TIMEOUT = 5.0
ASK_TIMEOUT = 2.0
REMEDY = "check the address, the user and the password in the URL, and whether the server runs"

LARGEST_PIECE = 1024 * 1024
"""Bytes of payload that are written at once."""

BAD_REQUEST = 400
"""The code with which a stream refuses a message for what it is."""
NOT_ITS_FAULT = frozenset({10002, 10109})
"""Refusals with that code that any message would meet: the account's limits are reached, the stream is sealed."""

BAD_SUBJECT = re.compile(r"[\s*>\x00-\x1f\x7f]|^\.|\.\.|\.$|^$|^\$(?:JS|SYS)\.")
NAME = re.compile(r"[!-9;-~]+")
"""Of a header: whatever can be seen in ASCII, but no colon."""


class NatsPublisher:
    """`nats://user:password@host:4222`, `nats://token@host`, `nats://one,two`; TLS with `tls://` or `?tls=true`.

    `subject`: a template, `{topic}` unless given; a stream must take it. `creds`: a file with credentials. `domain`:
    where `examine` looks for streams. `max_in_flight`: how many messages may be unanswered, of all calls together.

    A stream refuses one message and takes the next, so the relay keeps one unanswered message per key. With
    `pipelined` it does not, and what follows a refused message in its key may arrive before it.
    """

    def __init__(
        self,
        url: str = "nats://localhost:4222",
        *,
        subject: str = "{topic}",
        domain: str | None = None,
        pipelined: bool = False,
        max_in_flight: int = 1000,
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
        creds: str | None = None,
    ) -> None:
        place, given = take(url, OPTIONS)
        self.name = redact(place)
        self._subject = template("subject", given.get("subject", subject))
        self._domain = given.get("domain", domain)
        self.features = Features(ordered=given.get("pipelined", pipelined))
        most = given.get("max_in_flight", max_in_flight)
        if most < 1:
            raise ConfigurationError(f"max_in_flight must be at least 1, not {most}")
        self._longest_piece = max(1, most // 4)  # so that there is always something under way
        self._envelope = Envelope(given.get("format", format), given.get("source", source))
        servers = deque(_servers(place, url, given, given.get("creds", creds)))
        self._connections = Sessions[Connection](lambda: _open(servers, most))

    async def publish(self, batch: Batch) -> None:
        lanes = Lanes(batch)
        call = Call(lanes)
        connection = await self._connections.take()
        since = asyncio.get_running_loop().time()
        try:
            for piece in self._pieces(batch.messages):
                await connection.wait_for_room(len(piece))
                if lanes.may_start(piece):
                    connection.send(self._packets(piece, lanes, connection.max_payload), call)
                    await connection.wait_until_written()
            await connection.wait_for_answers(call)
        except BaseException:
            if call.is_open:
                connection.give_up(call, since, batch.timeout)
            raise

    async def close(self) -> None:
        await self._connections.close()

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        """Each subject needs a stream that takes it. Where a name has keys or types in it, any will do."""
        subjects = sorted({self._subject(Message(topic=topic, key="*", type="*")) for topic in topics})
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT + ASK_TIMEOUT):
                connection = await self._connections.take()
                lacking = [subject for subject in subjects if not await self._streams(connection, subject)]
        except Denied as error:
            remedy = "allow it, if you want to know beforehand whether a subject has a stream"
            return [finding("warning", f"{self.name} answers, but does not let us look: {error}", remedy)]
        except NoRespondersError:
            return [finding("problem", f"{self.name} has no JetStream", "enable JetStream, for this account too")]
        except Exception as error:
            return [finding("problem", f"{self.name}: {describe(error)}", REMEDY)]
        if lacking:
            return [finding("problem", f"{self.name}: no stream takes {lacking[0]!r}", _make_stream(lacking[0]))]
        return [finding("ok", f"{self.name} answers")]

    async def _streams(self, connection: Connection, subject: str) -> list[str]:
        prefix = f"$JS.{self._domain}.API" if self._domain else "$JS.API"
        answer = await connection.ask(f"{prefix}.STREAM.NAMES", {"subject": subject})
        if "error" in answer:
            raise _judged(answer)
        return answer.get("streams") or []

    def _pieces(self, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
        for piece in pieces(messages, LARGEST_PIECE):
            for first in range(0, len(piece), self._longest_piece):
                yield piece[first : first + self._longest_piece]

    def _packets(self, messages: Sequence[Message], lanes: Lanes, max_payload: int) -> list[Packet]:
        packets: list[Packet] = []
        for message in lanes.open(messages):
            try:
                packets.append(self._packet(message, max_payload))
            except MessageRejected as error:
                lanes.answer(message, error)
        return packets

    def _packet(self, message: Message, max_payload: int) -> Packet:
        subject = self._subject(message)
        if BAD_SUBJECT.search(subject):
            raise MessageRejected(f"{subject!r} is no subject that one may publish to", permanent=True)
        headers, payload, content_type = self._envelope.wrap(message)
        if content_type is not None:
            headers[CONTENT_TYPE] = content_type
        headers[DEDUPE_HEADER] = message.dedupe_id
        packet = Packet(message, subject, _block(headers), payload or b"")
        if (size := len(packet.headers) + len(packet.payload)) > max_payload:
            raise MessageRejected(
                f"it has {size:,} bytes with its headers, and the server takes {max_payload:,}", permanent=True
            )
        return packet


class Packet(NamedTuple):
    message: Message
    subject: str
    headers: bytes
    payload: bytes


def _block(headers: dict[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not all(map(_is_name, headers)) or not (text.count("\r") == text.count("\n") == len(headers)):
        bad = next(name for name, value in headers.items() if not _is_name(name) or "\r" in value or "\n" in value)
        raise MessageRejected(f"NATS cannot carry its header {bad!r}: {headers[bad]!r}", permanent=True)
    try:
        return f"NATS/1.0\r\n{text}\r\n".encode()
    except UnicodeEncodeError as error:
        raise MessageRejected(f"its headers are no text: {error}", permanent=True) from None


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None


# --- answers


def _verdict(data: bytes, headers: bytes | None, subject: str) -> Exception | None:
    """What a stream says to a message; nothing to object is nothing."""
    if headers is not None and headers.startswith(NO_RESPONDERS):
        return DestinationUnavailable(f"no stream takes the subject {subject!r}: {_make_stream(subject)}")
    try:
        said: Any = json.loads(data.decode())
        if "error" in said:
            return _judged(said)
        if said["stream"] and "seq" in said:
            return None
    except (ValueError, TypeError, LookupError, AttributeError):
        pass
    return DestinationUnavailable(f"something else than a stream answers on the subject {subject!r}")


def _judged(answer: dict[str, Any]) -> Exception:
    error = answer["error"]
    code, number = error.get("code"), error.get("err_code")
    place = f"stream {answer['stream']!r}: " if "stream" in answer else ""
    text = f"{place}{error.get('description')} (error {number})"
    is_refused = code == BAD_REQUEST and number not in NOT_ITS_FAULT
    return MessageRejected(text) if is_refused else DestinationUnavailable(text)


def _make_stream(subject: str) -> str:
    return f"make one, or add {subject!r} to the subjects of one that is there"


# --- connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it is, and who we are there."""

    place: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    tls: ssl.SSLContext | None = None


def _servers(place: str, url: str, given: dict[str, Any], creds: str | None) -> list[Server]:
    scheme, _, rest = place.partition("://")
    login, at, hosts = rest.rpartition("@")
    user, colon, password = login.partition(":")
    who: dict[str, str] = {}
    if at:
        who = {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    if "@" in login or "," in login:
        remedy = "write user and password once, before the first host, with @ as %40 and a comma as %2C"
        raise ConfigurationError(f"{redact(url)!r} is no address of NATS: {remedy}")
    if creds is not None:
        _check_creds(creds)
    encryption = _encryption(given, is_wanted=scheme == "tls" or given.get("tls", False))
    if scheme not in SCHEMES:
        raise ConfigurationError(f"{redact(url)!r} is no address of NATS: it begins with 'nats://' or 'tls://'")
    return [
        Server(place=_place(host, url), creds=creds, tls=encryption, **who)
        for host in hosts.removesuffix("/").split(",")
    ]


def _place(host: str, url: str) -> str:
    try:
        parts = urlsplit(f"nats://{host}")
        name, port = parts.hostname, parts.port or PORT
    except ValueError as error:
        raise unusable(url, f"is no address of NATS: {error}") from None
    if not name or parts.path:
        raise unusable(url, "is no address of NATS: write 'nats://host:4222'")
    return f"nats://[{name}]:{port}" if ":" in name else f"nats://{name}:{port}"


def _encryption(given: dict[str, Any], *, is_wanted: bool) -> ssl.SSLContext | None:
    if is_wanted:
        return tls.context(given)
    if lonely := [name for name in tls.OPTIONS if name in given]:
        raise ConfigurationError(f"{lonely[0]} is for TLS: write 'tls://' or add tls=true")
    return None


def _check_creds(creds: str) -> None:
    """The client would look for ever for what is not in the file."""
    if find_spec("nkeys") is None:
        raise MissingExtra("creds needs the library 'nkeys', which is not installed: pip install 'nats-py[nkeys]'")
    try:
        text = Path(creds).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"creds={creds} cannot be read: {error}") from None
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise ConfigurationError(f"creds={creds} has no credentials: it needs a user's JWT and seed")


async def _open(servers: deque[Server], most: int) -> Connection:
    """To the first server that lets us in."""
    troubles: list[str] = []
    for _ in range(len(servers)):
        connection = Connection(servers[0], most)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.open()
        except BaseException as error:
            connection.abort("it was never made")
            servers.rotate(-1)
            if not isinstance(error, Exception):
                raise
            troubles.append(f"{connection.server.place}: {describe(connection.reason or error)}")
        else:
            return connection
    raise DestinationUnavailable("; ".join(troubles))


class Sent(NamedTuple):
    message: Message
    subject: str
    call: Call


class Denied(Exception):
    """The server knows us, and we may not ask this."""


class Wire(TcpTransport):
    """A transport that can be let go of at once, whatever is still to be written."""

    def __bool__(self) -> bool:
        return True  # the client keeps it, and makes none of its own

    def has_unsent(self) -> bool:
        return self._io_writer is not None and has_unsent(self._io_writer.transport)

    def abort(self) -> None:
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()


class Connection(Waiting, Client):
    """A client that never connects again by itself, and its unanswered messages.

    Each message has a reply subject of its own within one inbox. `publish_async` of the client will not do: its futures
    stay open for ever when a stream refuses, and its headers take longer than all the rest.
    """

    def __init__(self, server: Server, most: int) -> None:
        super().__init__()
        self.server = server
        self.reason: Exception | None = None
        """The latest trouble that the client told of."""
        self._transport = self._wire = Wire()
        self._most = most
        self._inbox = self.new_inbox()
        self._numbers = count(1)
        self._unanswered: dict[bytes, Sent] = {}
        """By the subject of the reply."""
        self._news = asyncio.Event()

    async def open(self) -> None:
        server = self.server
        await self.connect(
            [server.place],
            error_cb=self._note,
            name="postroom",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=int(CONNECT_TIMEOUT),
            tls=server.tls,
            user=server.user,
            password=server.password,
            token=server.token,
            user_credentials=server.creds,
        )
        await self.subscribe(f"{self._inbox}.*")  # pyright: ignore[reportUnknownMemberType]
        await self.flush()  # a task of the client writes it, and what we write may not overtake it

    # --- messages

    async def wait_for_room(self, number: int) -> None:
        while self.lost is None and len(self._unanswered) + number > self._most:
            await self._hear()
        self._check()

    def send(self, packets: Sequence[Packet], call: Call) -> None:
        chunks: list[bytes] = []
        for message, subject, headers, payload in packets:
            reply = f"{self._inbox}.{next(self._numbers)}"
            size = len(headers)
            line = f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n"
            chunks += line.encode(), headers, payload, b"\r\n"
            self._unanswered[reply.encode()] = Sent(message, subject, call)
            call.sent()
        self._wire.write(b"".join(chunks))

    async def wait_until_written(self) -> None:
        await self._wire.drain()
        self._check()

    def abort(self, why: str) -> None:
        if self.lost is None:
            self.lost = f"the connection is lost: {why}"
        self._pending.clear()
        self._pending_data_size = 0
        self._wire.abort()
        self._news.set()

    def _settle(self, reply: bytes, error: Exception | None) -> None:
        message, _, call = self._unanswered.pop(reply)
        if self.lost is None:
            call.answer(message, error)
            self._note_answer()

    def _forget(self, call: Call) -> None:
        """A stream that acknowledges nothing must not take up the room of others, so they do not count any more."""
        self._unanswered = {reply: sent for reply, sent in self._unanswered.items() if sent.call is not call}
        self._news.set()

    def _has_unsent(self) -> bool:
        return self._wire.has_unsent()

    # --- questions

    async def ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        """Of JetStream itself."""
        try:
            answer = await self.request(subject, json.dumps(question).encode(), timeout=ASK_TIMEOUT)
        except TimeoutError:
            self._check()
            if subject.lower() in str(self.reason).lower():
                raise Denied(str(self.reason)) from None
            raise
        return json.loads(answer.data)

    # --- what the client tells

    async def _note(self, error: Exception) -> None:
        """It also tells of rights that we lack, in lower case; nobody will answer then."""
        self.reason = error
        text = str(error).lower()
        if "permissions violation for publish" in text:
            for reply, sent in list(self._unanswered.items()):
                if f'"{sent.subject.lower()}"' in text:
                    self._settle(reply, DestinationUnavailable(text))
        elif "permissions violation" in text:
            self.abort(text)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        """Answers need none of the client's queues; a second one to the same message says nothing new."""
        if (sent := self._unanswered.get(subject)) is not None:
            self._settle(subject, _verdict(data, headers, sent.subject))
        elif not subject.startswith(self._inbox.encode()):
            await super()._process_msg(sid, subject, reply, data, headers)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Without this a server that offers no TLS would be told the password in clear."""
        if initial_connection and self.server.tls is not None:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise SecureConnWantedError
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _read_loop(self) -> None:
        """What nobody reads any more is of no use, for whatever reason: an end, an error, the end of the loop."""
        try:
            await super()._read_loop()
        finally:
            self.abort(describe(self.last_error or self.reason or EOFError("it was closed")))
