"""Web hooks: one POST per message, to any server that speaks HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime

import httpx

from ..duration import spell
from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import HIDDEN, redact
from ..wire import tls
from ..wire.envelope import CONTENT_TYPE, DEFAULT_SOURCE, Envelope
from ..wire.findings import finding
from ..wire.http_address import Address, name_in, words
from ..wire.http_client import Exchange, Network, Session
from ..wire.http_headers import carried_headers, fixed_headers, signature, signing_keys, spelled
from ..wire.lanes import Lanes
from ..wire.options import positive, take, truth

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

CONNECT_TIMEOUT = 10.0
MOST_TOLD = 200
"""Characters of an answer that an error tells."""

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
        name = name_in(options, name)
        self.name = name or redact(place)
        _, given = take(f"{self.name}#{options}", OPTIONS, mark="#")
        self._address = Address(place, name)
        self._tls = self._address.tls(given)
        self._envelope = Envelope(given.get("format", format), given.get("source", source))
        self._keys = signing_keys(given.get("secret", secrets))
        self._headers = {**self._address.authorization, **fixed_headers(headers or {})}
        self._hidden = [*self._address.hidden, *words(self._headers.values())]
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
            return [finding("warning", f"{self.name} is reached through a client that cannot be looked into", remedy)]
        network = Network(self._allow_private)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                stream = await network.connect_tcp(self._address.host, self._address.port)
                if self._tls is not None:
                    await stream.start_tls(self._tls, self._address.host)
        except Exception as error:
            return [finding("problem", f"{self.name}: {describe(error)}", REMEDY)]
        finally:
            network.close()
        return [finding("ok", f"{self.name} can be connected to")]

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
        headers = carried_headers(wrapped.headers)
        if wrapped.content_type is not None:
            headers[CONTENT_TYPE] = spelled(CONTENT_TYPE, wrapped.content_type)
        headers["idempotency-key"] = id = spelled("idempotency-key", message.dedupe_id)
        if self._keys:
            headers |= signature(self._keys, id, int(time.time()), body)
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
