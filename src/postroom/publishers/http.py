"""Web hooks: one POST per message, to any server that speaks HTTP."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import logging
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from string import Formatter
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import httpcore
import httpx

from ..duration import spell
from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, Finding, Verdict
from ..redact import HIDDEN, redact
from ..wire import tls
from ..wire.envelope import CONTENT_TYPE, DEFAULT_SOURCE, TRACE, Envelope
from ..wire.lanes import Lanes
from ..wire.options import positive, take, truth
from ..wire.template import FIELDS, template

OPTIONS = {
    "name": str,
    "concurrency": positive,
    "format": str,
    "source": str,
    "secret": str,
    "allow_private": truth,
    "max_size": positive,
    **tls.OPTIONS,
}

UNAVAILABLE = frozenset({401, 403, 404, 407, 408, 425, 429})
"""Answers that are about the hook or our right to it, beside 3xx and 5xx. Any other 4xx is about the message."""

FORBIDDEN = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that are HTTP's own."""

AS_THEY_ARE = frozenset({CONTENT_TYPE, *TRACE})
"""Headers that have rules of their own for special characters."""

CONNECT_TIMEOUT = 10.0
KEEP_ALIVE = 5.0
"""Seconds after which an unused connection is closed; most servers wait longer."""

MOST_CARRIED = 500
"""Requests after which a connection for many is replaced. Many servers end one after 1,000, and then httpcore gives up
all that is in flight on it, though the server would still answer."""

MOST_READ = 64 * 1024
"""Bytes of an answer that are read to keep the connection; what says more loses it."""
MOST_TOLD = 200
"""Characters of an answer that an error tells."""
SHORTEST_SECRET = 8

HTTP2 = find_spec("h2") is not None
if (_hpack := logging.getLogger("hpack")).level == logging.NOTSET:
    _hpack.setLevel(logging.INFO)  # it would write every header into the log, and some are secret
REMEDY = "check the address in the URL, the certificates, and whether the server runs and can be reached from here"


class HttpPublisher:
    """`https://host/hooks/{topic}`: one POST per message with its headers; the answer's status decides.

    The path is a template with `{topic}`, `{key}` and `{type}`; the query is the hook's own. Options come in the
    fragment, which is never sent: `https://host/hook#concurrency=8&format=cloudevents&secret=whsec_…`. With a `name`,
    that is told instead of the URL.

    The messages of a key go one after the other, and once one fails the rest of that key is not tried. Different keys
    go at the same time, at most `concurrency` in all. After an outage nothing more is begun in that call.

    `secrets` sign each request as Standard Webhooks says; several mean that a key is being replaced. `headers` are
    added to each request. A `client` of one's own decides by itself about addresses and TLS, and is never closed.
    """

    features = Features(ordered=True)

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        concurrency: int = 16,
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
        secrets: str | Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        max_size: int | None = None,
        allow_private: bool = False,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        place, _, options = url.partition("#")
        name = _name_in(options, name)
        self.name = name or redact(place)
        _, given = take(f"{self.name}#{options}", OPTIONS, mark="#")
        self._address = Address(place, name)
        self._tls = self._address.tls(given)
        self._envelope = Envelope(given.get("format", format), given.get("source", source))
        self._keys = _keys(given.get("secret", secrets))
        self._headers = {**self._address.authorization, **_fixed(headers or {})}
        self._hidden = [*self._address.hidden, *_words(self._headers.values())]
        self._max_size: int | None = given.get("max_size", max_size)
        self._allow_private: bool = given.get("allow_private", allow_private)
        self._concurrency: int = given.get("concurrency", concurrency)
        if self._concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, not {self._concurrency}")
        if client is not None and (self._allow_private or tls.OPTIONS.keys() & given):
            raise ConfigurationError("allow_private and ssl_… cannot be given together with a client: it decides")
        self._client = client
        self._session: Session | None = None
        self._room = asyncio.Semaphore(self._concurrency)

    async def publish(self, batch: Batch) -> None:
        self._settle_in()
        call = Call(batch)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(call.waiting))):
                group.create_task(self._work_through(call))

    async def close(self) -> None:
        if self._session is not None:
            self._session.close()
            await asyncio.sleep(0)  # until they are closed indeed

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        """Whether a connection can be made; no request is sent, so what the hook says is not known."""
        if self._client is not None:
            remedy = "watch the first deliveries"
            return [_found("warning", f"{self.name} is reached through a client that cannot be looked into", remedy)]
        network = Network(self._allow_private)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                stream = await network.connect_tcp(self._address.host, self._address.port)
                if self._tls is not None:
                    await stream.start_tls(self._tls, self._address.host)
        except Exception as error:
            return [_found("problem", f"{self.name}: {describe(error)}", REMEDY)]
        finally:
            network.close()
        return [_found("ok", f"{self.name} can be connected to")]

    async def _work_through(self, call: Call) -> None:
        while call.waiting:
            for message in call.lanes.open(call.waiting.popleft()):
                await self._attempt(call, message, self._room)

    async def _attempt(self, call: Call, message: Message, room: asyncio.Semaphore) -> None:
        if not await call.found(room):
            call.lanes.answer(message, NotAttempted("other requests took all the room that concurrency leaves"))
            return
        try:
            if call.may_start(message):
                call.answer(message, await self._post(message, call.timeout))
        finally:
            room.release()

    async def _post(self, message: Message, timeout: float) -> Exception | None:
        session = self._settle_in()
        try:
            request = self._request(session.client, message, timeout)
        except MessageRejected as error:
            return error
        exchange, outage = Exchange(request), f"no answer within {spell(timeout)}"
        try:
            async with asyncio.timeout(timeout):
                await session.carry_out(exchange)
        except TimeoutError:
            pass
        except DestinationUnavailable as error:
            return error
        except Exception as error:  # the client's, and whatever comes of a connection that ends at a bad moment
            outage = describe(error)
        if exchange.response is None:
            return DestinationUnavailable(outage)
        return _judged(exchange.response, exchange.body, self._hide)

    def _request(self, client: httpx.AsyncClient, message: Message, timeout: float) -> httpx.Request:
        wrapped = self._envelope.wrap(message)
        body = wrapped.payload or b""
        if self._max_size is not None and len(body) > self._max_size:
            raise MessageRejected(f"it has {len(body)} bytes, and max_size={self._max_size}", permanent=True)
        headers = _carried(wrapped.headers)
        if wrapped.content_type is not None:
            headers[CONTENT_TYPE] = _spelled(CONTENT_TYPE, wrapped.content_type)
        headers["idempotency-key"] = id = _spelled("idempotency-key", message.dedupe_id)
        if self._keys:
            headers |= _signature(self._keys, id, int(time.time()), body)
        headers |= self._headers
        url, extensions = self._address.of(message)
        return client.build_request(
            "POST", url, headers=headers, content=body, timeout=timeout, extensions=dict(extensions)
        )

    def _hide(self, text: str) -> str:
        """Without what is secret: some servers repeat what they were told."""
        for word in self._hidden:
            text = text.replace(word, HIDDEN)
        return redact(text)

    def _settle_in(self) -> Session:
        """Connections belong to one event loop, and are made anew on another."""
        session, loop = self._session, asyncio.get_running_loop()
        if session is not None and session.loop is loop and not session.is_over:
            return session
        if session is not None and session.loop is loop:
            session.retire()
        else:
            self._room = asyncio.Semaphore(self._concurrency)
        self._session = Session(self._client, self._tls, self._allow_private)
        return self._session


class Call:
    """One `publish`."""

    def __init__(self, batch: Batch) -> None:
        self.timeout = batch.timeout
        self.lanes = Lanes(batch)
        self.waiting = _by_key(batch.messages)
        self._met_outage = False
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        """When the hook last answered, or the call began."""
        self._limits: set[asyncio.Timeout] = set()
        """Of those that wait for room."""

    async def found(self, room: asyncio.Semaphore) -> bool:
        """Whether there was room in good time. Who waits for long is answered for, lest the relay take it for the
        hook's silence and end what has begun."""
        if not room.locked():
            return await room.acquire()
        limit = asyncio.timeout_at(self._patience_ends)
        try:
            async with limit:
                self._limits.add(limit)
                return await room.acquire()
        except TimeoutError:
            return False
        finally:
            self._limits.discard(limit)

    def may_start(self, message: Message) -> bool:
        if self._met_outage:
            self.lanes.answer(message, NotAttempted("the destination had become unavailable"))
            return False
        return self.lanes.may_start([message])

    def answer(self, message: Message, error: Exception | None) -> None:
        self._met_outage |= isinstance(error, DestinationUnavailable)
        self._heard = self._loop.time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(self._patience_ends)
        self.lanes.answer(message, error)

    @property
    def _patience_ends(self) -> float:
        return self._heard + self.timeout / 2


def _by_key(messages: Iterable[Message]) -> deque[list[Message]]:
    lanes: dict[object, list[Message]] = {}
    for message in messages:
        lanes.setdefault(message.id if message.key is None else (message.topic, message.key), []).append(message)
    return deque(lanes.values())


def _found(verdict: Verdict, seen: str, remedy: str | None = None) -> Finding:
    return Finding(name="destination", verdict=verdict, seen=seen, remedy=remedy)


# --- where a message goes


class Address:
    """The URL of a hook. The host is fixed: it has one breaker and one limit. If it has a name, no more is told."""

    def __init__(self, url: str, name: str | None = None) -> None:
        shown = name or redact(url)
        parts, origin = _split(url, shown)
        self._name = name
        self._origin = str(origin).removesuffix("/")
        self._path, self._needed = _path(parts.path or "/", shown)
        self._query = f"?{parts.query}" if parts.query else ""
        self._shown_query = redact(self._query)
        self.hidden = [] if name is None else _words(re.split("[/?&=]", f"{parts.path}{self._query}"))
        self._is_secure = parts.scheme == "https"
        self.host = origin.raw_host.decode()
        self.port = origin.port or (443 if self._is_secure else 80)
        self.authorization = _basic(parts.username, parts.password)

    def of(self, message: Message) -> tuple[str, Mapping[str, Any]]:
        """The URL, and if it holds a secret, what to ask for beside it: the client logs every URL it sees."""
        path = self._filled(message)
        shown = f"{path}{self._shown_query}" if self._name is None else f"/{HIDDEN}"
        url = f"{self._origin}{path}{self._query}"
        if shown == f"{path}{self._query}":
            return url, {}
        return f"{self._origin}{shown}", {"target": httpx.URL(url).raw_path}

    def tls(self, given: Mapping[str, Any]) -> ssl.SSLContext | None:
        if self._is_secure:
            return tls.context(given)
        if options := sorted(tls.OPTIONS.keys() & given):
            raise ConfigurationError(f"{options[0]} needs https:, not http:")
        return None

    def _filled(self, message: Message) -> str:
        values = {field: _segment(getattr(message, field)) for field in FIELDS}
        if lacking := [field for field in self._needed if values[field] is None]:
            raise MessageRejected(f"it has no {lacking[0]}, and the path of the hook needs one", permanent=True)
        path = self._path(Message(**values, id=message.id))
        if _leads_elsewhere(path):
            raise MessageRejected("its path would have . or .. in it, which leads elsewhere", permanent=True)
        return path


def _name_in(options: str, name: str | None) -> str | None:
    """The name that the options give, or else this one."""
    name = dict(parse_qsl(options, keep_blank_values=True)).get("name", name)
    if name is not None and (not name.strip() or "#" in name):
        raise ConfigurationError(f"the name of a hook must not be empty, nor have # in it: {name!r}")
    return name


def _path(text: str, shown: str) -> tuple[Callable[[Message], str], list[str]]:
    """The template, and which fields it needs."""
    try:
        made = template("path", text)
    except ConfigurationError:
        allowed = "{topic}, {key} and {type}, and nothing else in braces"
        raise ConfigurationError(f"the path of {shown!r} may name {allowed}") from None
    return made, [field for _, field, _, _ in Formatter().parse(text) if field]


def _words(texts: Iterable[str]) -> list[str]:
    """What to hide of them: each, and the last word of each, unless it is too short for a secret."""
    return [word for text in texts for word in (text, text.rpartition(" ")[2]) if len(word) >= SHORTEST_SECRET]


def _split(url: str, shown: str) -> tuple[SplitResult, httpx.URL]:
    """The parts, and the URL without its path and what may be secret."""
    try:
        parts = urlsplit(url)
        if "{" in parts.netloc:
            raise ValueError("the host cannot be a template, only the path can")
        if _leads_elsewhere(parts.path):
            raise ValueError("its path has . or .. in it")
        origin = httpx.URL(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
        if parts.scheme not in ("http", "https") or not origin.host:
            raise ValueError("it must begin with http:// or https:// and a host")
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigurationError(f"{shown!r} is no address of a web hook: {error}") from None
    return parts, origin


def _leads_elsewhere(path: str) -> bool:
    return not {".", ".."}.isdisjoint(path.split("/"))


def _segment(value: str | None) -> Any:
    return None if value is None else quote(value, safe="")


def _basic(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    credentials = f"{unquote(user)}:{unquote(password or '')}"
    return {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


# --- headers

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"(?:[!-$&-~](?:[ -$&-~]*[!-$&-~])?)?")
"""What HTTP carries as it is. A percent sign would be taken for the beginning of a code."""
_LEGAL = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_SAFE = "".join(map(chr, (*range(0x23, 0x25), 0x21, *range(0x26, 0x7F))))
"""What CloudEvents leaves alone: visible, and neither a quotation mark nor a percent sign."""


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """In lower case, as HTTP/2 has them, and spelled in ASCII."""
    carried: dict[str, str] = {}
    for given, value in headers.items():
        name = given.lower()
        if not _TOKEN.fullmatch(name) or name in FORBIDDEN:
            raise MessageRejected(f"HTTP cannot carry a header named {given!r}", permanent=True)
        if name in carried:
            raise MessageRejected(f"it has two headers that HTTP takes for one: {given!r}", permanent=True)
        carried[name] = _spelled(name, value)
    return carried


def _spelled(name: str, value: str) -> str:
    """Special characters as percent codes of their UTF-8, as the binding of CloudEvents for HTTP says."""
    is_fine = _LEGAL if name in AS_THEY_ARE else _PLAIN
    if is_fine.fullmatch(value) and not (name.startswith("ce-") and {" ", '"'}.intersection(value)):
        return value
    return quote(value, safe=_SAFE, errors="replace")


def _fixed(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in FORBIDDEN:
            raise ConfigurationError(f"HTTP cannot carry a header named {name!r}")
        if not _LEGAL.fullmatch(value):
            raise ConfigurationError(f"the value of the header {name!r} must be in visible ASCII")
    return {name.lower(): value for name, value in headers.items()}


# --- signatures


def _keys(secrets: str | Sequence[str]) -> list[bytes]:
    if isinstance(secrets, str):
        # In a URL a plus sign means a blank, and is a letter of base64 too.
        secrets = [part.replace(" ", "+") for part in re.split(r",\s*(?=whsec_)|,|\s(?=whsec_)", secrets)]
    return [_key(part.strip()) for part in secrets]


def _key(secret: str) -> bytes:
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ConfigurationError("a secret must be a key in base64, as in 'whsec_…'")
    return key


def _signature(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """As Standard Webhooks says, one for each key."""
    signed = b"%b.%d.%b" % (id.encode(), timestamp, body)
    signatures = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


# --- answers


def _judged(response: httpx.Response, body: bytes, hide: Callable[[str], str]) -> Exception | None:
    status = response.status_code
    if 200 <= status < 300:
        return None
    said = _beginning(f"HTTP {status} {response.reason_phrase}", hide)
    if text := _beginning(body[: 10 * MOST_TOLD].decode(errors="replace"), hide):
        said = f"{said}: {text}"
    if 400 <= status < 500 and status not in UNAVAILABLE:
        return MessageRejected(said)  # never for good: a hook that is broken may say so of every message
    if 300 <= status < 400:
        location = _beginning(response.headers.get("location", "nowhere"), hide)
        said = f"{said} (redirects are not followed, and it leads to {location})"
    return DestinationUnavailable(said, retry_after=_retry_after(response, time.time()))


def _retry_after(response: httpx.Response, now: float) -> float | None:
    """Seconds, which may be told as such or as a date."""
    value = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    return None


def _beginning(text: str, hide: Callable[[str], str]) -> str:
    return hide(_one_line(text))[:MOST_TOLD]


def _one_line(text: str) -> str:
    return re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip()


# --- the client


class Exchange:
    """A request, and what became of it."""

    def __init__(self, request: httpx.Request) -> None:
        self.request = request
        self.response: httpx.Response | None = None
        self.body = b""


class Session:
    """A client and its connections, on one event loop."""

    def __init__(self, client: httpx.AsyncClient | None, context: ssl.SSLContext | None, allow_private: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self._network = Network(allow_private)
        self.client = client or _client(context, self._network)
        self._carried = self._busy = 0
        self._is_retired = self._is_closed = False

    @property
    def is_over(self) -> bool:
        is_worn = self._carried >= MOST_CARRIED and self._network.is_shared
        return self._is_closed or is_worn or self._network.is_stale

    async def carry_out(self, exchange: Exchange) -> None:
        self._carried += 1
        self._busy += 1
        try:
            await self._carry_out(exchange)
        finally:
            self._busy -= 1
            if self._is_retired:
                self.retire()

    def retire(self) -> None:
        """Who uses it may go on; the last one closes it."""
        self._is_retired = True
        if not self._busy:
            self.close()

    def close(self) -> None:
        self._is_closed = True
        self._network.close()

    async def _carry_out(self, exchange: Exchange) -> None:
        USER.set(exchange)
        try:
            exchange.response = await self.client.send(exchange.request, stream=True, follow_redirects=False)
            await self._read(exchange, exchange.response)
        except httpx.RemoteProtocolError:
            raise  # the server ended it, or this one of the requests that share the connection
        except BaseException:
            self._give_up(exchange)
            raise

    async def _read(self, exchange: Exchange, response: httpx.Response) -> None:
        async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as parts:
            async for part in parts:
                exchange.body += part
                if len(exchange.body) > MOST_READ:
                    self._give_up(exchange)
                    break
        await response.aclose()

    def _give_up(self, exchange: Exchange) -> None:
        """Nothing more of it may leave. Of requests that share its connection nobody knows what has left."""
        if self._network.give_up(exchange):
            self.close()


class Transport(httpx.AsyncHTTPTransport):
    """The usual one, with a network of our own, for which httpx has no argument."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool


def _client(context: ssl.SSLContext | None, network: Network) -> httpx.AsyncClient:
    pool = httpcore.AsyncConnectionPool(
        ssl_context=context,
        max_connections=None,  # as many as there are requests, and their number is limited
        keepalive_expiry=KEEP_ALIVE,
        http2=HTTP2,
        network_backend=network,
    )
    return httpx.AsyncClient(
        transport=Transport(pool),
        headers={"accept-encoding": "identity", "user-agent": "postroom"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,
    )


# --- connections

USER: ContextVar[Exchange | None] = ContextVar("USER", default=None)
"""Who sends."""


PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"postroom"
PONG = bytes((0, 0, 8, 6, 1, 0, 0, 0, 0)) + b"postroom"
"""Frames of HTTP/2."""
PATIENCE = 0.25
"""Seconds of silence before the first ping; after each that is answered, twice as many before the next."""


class Network(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were looked at, and knows its connections, so that it can end them at once."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._streams: set[Stream] = set()

    @property
    def is_shared(self) -> bool:
        return any(stream.is_shared for stream in self._streams)

    @property
    def is_stale(self) -> bool:
        """Whether a connection for many requests has ended, which the client would only learn from the next one."""
        return any(stream.is_shared and stream.has_ended for stream in self._streams)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> Stream:
        with _translated(httpcore.ConnectError, f"{host}:{port}: "):
            addresses = await self._resolve(host, port)
            for number, address in enumerate(addresses, start=1):
                try:
                    async with asyncio.timeout(timeout and timeout / len(addresses)):
                        return await self._open(address, port)
                except OSError:
                    if number == len(addresses):
                        raise
        raise DestinationUnavailable(f"{host} has no address")

    def give_up(self, user: Exchange) -> bool:
        """End the connection of that user, and tell whether it may have been one for many."""
        streams = [stream for stream in self._streams if stream.is_shared or stream.user is user]
        for stream in streams:
            stream.abort()
        return any(stream.is_shared for stream in streams)

    def close(self) -> None:
        for stream in list(self._streams):
            stream.abort()

    def forget(self, stream: Stream) -> None:
        self._streams.discard(stream)

    async def _resolve(self, host: str, port: int) -> list[str]:
        """Looked up once: another answer, later, would not be looked at."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        allowed = [address for address in addresses if self._allow_private or is_public(address)]
        if addresses and not allowed:
            raise DestinationUnavailable(
                f"{host} is {addresses[0]}, which is no public address: refused unless the URL has #allow_private=true"
            )
        return allowed

    async def _open(self, address: str, port: int) -> Stream:
        loop = asyncio.get_running_loop()
        reader = Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, address, port)
        stream = Stream(self, reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        self._streams.add(stream)
        return stream


class Reader(asyncio.StreamReader):
    """Tells what has come that nobody asked for."""

    unread = 0
    has_ended = False

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    def feed_eof(self) -> None:
        self.has_ended = True
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        self.has_ended = True
        super().set_exception(exc)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread -= len(data)
        return data


class Stream(httpcore.AsyncNetworkStream):
    """One connection. What has not left when it is aborted never leaves."""

    def __init__(self, network: Network, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._network = network
        self._reader = reader
        self._writer = writer
        self.user = USER.get()
        """Who sent last."""
        self.is_shared = False
        self._patience = PATIENCE

    @property
    def has_ended(self) -> bool:
        return self._reader.has_ended or self._writer.is_closing()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _translated(httpcore.ReadError):
            async with asyncio.timeout(timeout):
                return await (self._read_awake(max_bytes) if self.is_shared else self._reader.read(max_bytes))

    async def _read_awake(self, max_bytes: int) -> bytes:
        """After a silence, ask for a sign of life. For httpcore may wait for leave to go on sending that another
        request has read already, and looks again when anything at all comes."""
        knock = asyncio.get_running_loop().call_later(self._patience, self._writer.write, PING)
        try:
            data = await self._reader.read(max_bytes)
        finally:
            knock.cancel()
        self._patience = 2 * self._patience if data == PONG else PATIENCE
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.user = USER.get()
        with _translated(httpcore.WriteError):
            async with asyncio.timeout(timeout):
                self._writer.write(buffer)
                await self._writer.drain()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        try:
            with _translated(httpcore.ConnectError, f"{server_hostname}: "):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self.abort()
            raise
        self.is_shared = self.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        return self

    async def aclose(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._network.forget(self)
        with suppress(RuntimeError):  # its loop is closed
            self._writer.transport.abort()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self.has_ended or self._reader.unread > 0
        return self._writer.get_extra_info(info)


@contextmanager
def _translated(kind: type[httpcore.NetworkError], where: str = "") -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TIMEOUTS[kind](f"{where}no answer in time") from error
    except (OSError, UnicodeError) as error:
        raise kind(f"{where}{error}") from error


TIMEOUTS: Mapping[type[httpcore.NetworkError], type[httpcore.TimeoutException]] = {
    httpcore.ConnectError: httpcore.ConnectTimeout,
    httpcore.ReadError: httpcore.ReadTimeout,
    httpcore.WriteError: httpcore.WriteTimeout,
}

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether an address is anybody's on the internet, and so none of our own network."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if inner := _within(address):
            return is_public(str(inner))
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The older address that it stands for, if it does."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
