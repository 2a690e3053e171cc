"""RabbitMQ, and whatever else speaks AMQP 0-9-1 with publisher confirms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, NamedTuple

from pika import BasicProperties, DeliveryMode, SSLOptions, URLParameters
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker
from pika.spec import Basic

from ..duration import spell
from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import redact
from ..wire import tls
from ..wire.calls import Call
from ..wire.envelope import DEFAULT_SOURCE, Envelope
from ..wire.findings import finding
from ..wire.lanes import Lanes, pieces
from ..wire.options import duration, positive, take, truth, unusable, whole
from ..wire.sessions import Sessions
from ..wire.template import template

OPTIONS = {
    "exchange": str,
    "routing_key": str,
    "mandatory": truth,
    "persistent": truth,
    "pipelined": truth,
    "declare": truth,
    "priority": whole,
    "ttl": duration,
    "max_size": positive,
    "format": str,
    "source": str,
    **tls.OPTIONS,
}
THEIRS = ("channel_max", "frame_max", "heartbeat", "locale")
"""What the URL may say to the client."""

MAX_SIZE = 16 * 1024 * 1024
"""Bytes of payload that RabbitMQ takes by default, from 4.0 on; before it was 128 MiB. More, and it closes the channel
under everybody."""
LONGEST_LIFE = 10 * 365 * 24 * 3600
"""Seconds until a message expires: RabbitMQ takes no more than about ten years, and closes the channel."""
HIGHEST_PRIORITY = 255
CONNECT_TIMEOUT = 10.0
LARGEST_PIECE = 1024 * 1024
"""Bytes of payload that are handed to the client before others have their turn."""
LARGEST_WRITE = 128 * 1024
ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED = 403, 404, 406
MOST_SUSPECTS = 10_000
DEFAULT_EXCHANGE = "amq.default"
"""What the broker calls the one without a name, when it refuses it."""
REMEDY = "check the address, the user, the password and the virtual host in the URL, and whether the broker runs"


class AmqpPublisher:
    """`amqp://user:password@host:5672/vhost`, or `amqps:` with TLS. A message is delivered when the broker confirms it.

    `exchange` and `routing_key` are templates: unless given, a message goes through the default exchange to the queue
    named like its topic. One that no queue takes is refused, unless `mandatory=false`.

    One message of a key is unanswered at a time. `pipelined=true` sends them all at once: quicker with few keys, and
    out of order if the broker refuses one in the middle.
    """

    def __init__(
        self,
        url: str = "amqp://guest:guest@localhost:5672/",
        *,
        exchange: str = "",
        routing_key: str = "{topic}",
        mandatory: bool = True,
        persistent: bool = True,
        pipelined: bool = False,
        declare: bool = False,
        priority: int | None = None,
        ttl: float | None = None,
        max_size: int = MAX_SIZE,
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
    ) -> None:
        place, given = take(url, OPTIONS, THEIRS)
        self.name = redact(place)
        parameters = _parameters(place, url, given)
        exchange = given.get("exchange", exchange)
        self._exchange: Callable[[Message], str] = template("exchange", exchange) if exchange else _default_exchange
        self._routing_key = template("routing_key", given.get("routing_key", routing_key))
        self._mandatory = given.get("mandatory", mandatory)
        self._mode = DeliveryMode.Persistent if given.get("persistent", persistent) else DeliveryMode.Transient
        self._declare = given.get("declare", declare)
        self._priority: int | None = given.get("priority", priority)
        if self._priority is not None and not 0 <= self._priority <= HIGHEST_PRIORITY:
            raise ConfigurationError(f"priority must be between 0 and {HIGHEST_PRIORITY}, not {self._priority}")
        self._ttl: float | None = given.get("ttl", ttl)
        if self._ttl is not None and self._ttl > LONGEST_LIFE:
            raise ConfigurationError(f"ttl must be at most ten years, not {spell(self._ttl)}; leave it out for none")
        self._max_size = given.get("max_size", max_size)
        self._envelope = Envelope(given.get("format", format), given.get("source", source))
        # One exchange may be missing while another takes what comes later in the key.
        is_ordered = given.get("pipelined", pipelined) and "{type}" not in exchange
        self.features = Features(ordered=is_ordered, max_size=self._max_size)
        self._suspects: dict[str, None] = {}
        """One of them made the broker close the channel. They go one at a time, on a channel apart."""
        self._channels = Sessions[Channel](lambda: _open(parameters, self._suspect))
        self._apart = Sessions[Channel](lambda: _open(parameters, self._suspect))

    async def publish(self, batch: Batch) -> None:
        lanes = Lanes(batch)
        if self._suspects and any(message.id in self._suspects for message in batch.messages):
            await self._publish_apart(batch, lanes)
            return
        call = Call(lanes)
        channel: Channel | None = None
        heard, since = 0, 0.0
        try:
            for piece in pieces(batch.messages, LARGEST_PIECE):
                if not lanes.may_start(piece):
                    continue
                for message in lanes.open(piece):
                    if channel is None:
                        channel = await self._channels.take()
                        heard, since = channel.heard, time.monotonic()
                    await self._send(channel, message, call, lanes)
                await asyncio.sleep(0)  # answers, and others, have their turn
            await call.end()
        finally:
            if channel is not None and call.is_open:
                channel.forget(call, is_silent=channel.heard == heard and time.monotonic() - since >= batch.timeout)

    async def _publish_apart(self, batch: Batch, lanes: Lanes) -> None:
        """One by one, so that there is no doubt about whom the broker means."""
        for message in lanes.open(batch.messages):
            channel, call = await self._apart.take(), Call(lanes)
            async with channel.turn:
                if not lanes.may_start([message]):
                    continue
                try:
                    await self._send(channel, message, call, lanes)
                    await call.end()
                finally:
                    if call.is_open:
                        channel.forget(call, is_silent=True)
            if channel.lost is None:
                self._suspects.pop(message.id, None)

    def _suspect(self, messages: Iterable[Message]) -> None:
        self._suspects.update((message.id, None) for message in messages)
        while len(self._suspects) > MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    async def close(self) -> None:
        await self._channels.close()
        await self._apart.close()

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                for topic in () if self._declare else topics:
                    channel = await self._channels.take()
                    await self._look_for(channel, Message(topic=topic))
                await self._channels.take()
        except Exception as error:
            return [finding("problem", f"{self.name}: {describe(error)}", REMEDY)]
        return [finding("ok", f"{self.name} answers")]

    async def _look_for(self, channel: Channel, message: Message) -> None:
        try:
            exchange, routing_key = self._exchange(message), self._routing_key(message)
        except MessageRejected:
            return  # its place depends on a key or a type
        if exchange:
            await channel.declare_exchange(exchange, passive=True)
        else:
            await channel.declare_queue(routing_key, passive=True)

    async def _send(self, channel: Channel, message: Message, call: Call, lanes: Lanes) -> None:
        try:
            exchange, routing_key = self._exchange(message), self._routing_key(message)
            headers, payload, content_type = self._envelope.wrap(message)
            body = payload or b""
            if len(body) > self._max_size:
                raise MessageRejected(f"{len(body)} bytes are more than max_size={self._max_size}", permanent=True)
            if self._declare:
                await channel.have(exchange, routing_key)
            properties = BasicProperties(
                content_type=content_type,
                headers=headers,
                delivery_mode=self._mode,
                priority=self._priority,
                expiration=self._expiration(message),
                message_id=message.id,
                timestamp=None if message.created_at is None else int(message.created_at.timestamp()),
                type=message.type,
            )
            channel.send(exchange, routing_key, body, properties, self._mandatory, message, call)
        except (MessageRejected, DestinationUnavailable) as error:
            lanes.answer(message, error)  # what is lost for all will be told to the next

    def _expiration(self, message: Message) -> str | None:
        """Milliseconds, in words."""
        limits = [self._ttl] if self._ttl is not None else []
        if message.expires_at is not None:
            limits.append(max(0.0, (message.expires_at - datetime.now(UTC)).total_seconds()))
        return str(int(1000 * min(*limits, LONGEST_LIFE))) if limits else None


def _default_exchange(_: Message) -> str:
    return ""


def _parameters(place: str, url: str, given: Mapping[str, Any]) -> URLParameters:
    try:
        parameters = URLParameters(place)
    except (ValueError, TypeError, KeyError) as error:
        raise unusable(url, f"is no address of RabbitMQ: {error}") from None
    if not place.startswith("amqps:") and (lonely := [name for name in tls.OPTIONS if name in given]):
        raise ConfigurationError(f"{lonely[0]} is for TLS: write 'amqps://'")
    if place.startswith("amqps:"):
        parameters.ssl_options = SSLOptions(tls.context(given), parameters.host)
    parameters.connection_attempts = 1  # the relay tries again, and knows when
    parameters.socket_timeout = parameters.stack_timeout = CONNECT_TIMEOUT
    return parameters


# --- connections


async def _open(parameters: URLParameters, suspect: Callable[[Iterable[Message]], None]) -> Channel:
    channel = Channel(suspect)
    await channel.open(parameters)
    return channel


class _Connection(AsyncioConnection):
    """Gives the socket all frames of a moment together. One by one, and each message has three, they cost both sides
    more than all the rest."""

    _transport: Any

    def __init__(self, *args: Any, custom_ioloop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        self._frames: list[bytes] = []
        self._call_soon = custom_ioloop.call_soon
        super().__init__(*args, custom_ioloop=custom_ioloop, **kwargs)

    def has_unsent(self) -> bool:
        return bool(self._frames or (self._transport is not None and self._transport.get_write_buffer_size()))

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._frames:
            self._call_soon(self._emit)
        self._frames.append(data)

    def _emit(self) -> None:
        frames, self._frames = self._frames, []
        if self._transport is not None:  # else it was given up
            for part in _joined(frames):
                self._transport.write(part)


def _joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """In parts that are not too large: of one that is sent by and by, the client copies the rest each time."""
    part: list[bytes] = []
    size = 0
    for frame in frames:
        if part and size + len(frame) > LARGEST_WRITE:
            yield b"".join(part)
            part, size = [], 0
        part.append(frame)
        size += len(frame)
    yield b"".join(part)


class _Sent(NamedTuple):
    message: Message
    call: Call | None
    """None: nobody waits for it any more."""
    exchange: str


class Channel:
    """A connection with one channel, whose messages are confirmed in the order of their tags, or several at once."""

    def __init__(self, suspect: Callable[[Iterable[Message]], None]) -> None:
        self._suspect = suspect
        self._loop = asyncio.get_running_loop()
        self._connection: Any = None
        self._channel: Any = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._reason: BaseException | None = None
        self._waiting: asyncio.Future[Any] | None = None
        self._tag = 0
        self._unconfirmed: dict[int, _Sent] = {}
        self.heard = 0
        """How often the broker has confirmed something."""
        self._returned: dict[str, Exception] = {}
        self._had: set[tuple[str, str]] = set()
        self._declaring = asyncio.Lock()
        self.turn = asyncio.Lock()
        """Of those who want to be alone on it."""

    @property
    def lost(self) -> str | None:
        return None if self._reason is None else describe(self._reason)

    # --- its life

    async def open(self, parameters: URLParameters) -> None:
        try:
            self._connection = _Connection(
                parameters,
                on_open_callback=self._answered,
                on_open_error_callback=self._lost,
                on_close_callback=self._lost,
                custom_ioloop=self._loop,
            )
            await self._answer()
            self._connection.add_on_connection_blocked_callback(self._blocked)
            channel: Any = self._connection.channel(on_open_callback=self._answered)
            await self._answer()
            channel.add_on_close_callback(self._closed_by_broker)
            channel.add_on_return_callback(self._is_returned)
            channel.confirm_delivery(self._confirmed, self._answered)
            await self._answer()
            self._channel = channel
        except BaseException:
            self._hang_up()
            raise

    async def close(self) -> None:
        """With a goodbye, for which it does not wait long."""
        if self.lost is None:
            self._connection.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(self._closed)
        self._hang_up()

    def _hang_up(self, reason: Exception | None = None) -> None:
        """Nothing more may leave."""
        self._lost(None, reason or DestinationUnavailable("the connection was given up"))
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection._transport is not None:
            connection._terminate_stream(AMQPConnectionError("given up"))
        elif not connection.is_closed and not connection.is_closing:
            connection.close()

    def _lost(self, _: object, reason: object) -> None:
        if self._reason is None:
            self._reason = _outage(reason)
        if not self._closed.done():
            self._closed.set_result(None)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._reason)
        self._answer_for([*self._unconfirmed], self._reason)

    def _answer_for(self, tags: Iterable[int], reason: BaseException) -> None:
        for tag in tags:
            message, call, _ = self._unconfirmed.pop(tag)
            if call is not None:
                call.answer(message, reason)

    def _closed_by_broker(self, _: object, reason: object) -> None:
        """The channel; the connection is of no use without it. The broker does so for the sake of one message, if that
        has no exchange to go to, or of a question: it is no outage for the others, which may have arrived or not."""
        if self._blame(reason):
            reason = NotAttempted(f"the channel was closed because of another message: {_words(reason)}")
        self._lost(None, reason)
        self._hang_up()

    def _blame(self, reason: object) -> bool:
        """Tell those that are to blame. False if it is not known who is."""
        guilty = [tag for tag, sent in self._unconfirmed.items() if _is_about(reason, sent.exchange)]
        self._answer_for(guilty, _outage(reason))
        if guilty or not isinstance(reason, ChannelClosedByBroker):
            return bool(guilty)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(_outage(reason))
            return True
        if reason.reply_code != PRECONDITION_FAILED:
            return False
        self._suspect([sent.message for sent in self._unconfirmed.values()])
        if len(self._unconfirmed) == 1:
            self._answer_for([*self._unconfirmed], MessageRejected(_words(reason)))
        return True

    def _blocked(self, _: object, frame: Any) -> None:
        """It reads nothing more until it has memory or disk again; nobody can be served so long."""
        reason = frame.method.reason
        self._lost(None, DestinationUnavailable(f"the broker takes nothing now: {reason}"))
        self._hang_up()

    # --- questions

    def _answered(self, answer: object) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)

    async def _answer(self) -> Any:
        if self._reason is not None:
            raise self._reason
        self._waiting = self._loop.create_future()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._waiting
        finally:
            self._waiting = None

    async def declare_queue(self, name: str, *, passive: bool = False) -> None:
        self._channel.queue_declare(name, passive=passive, durable=True, callback=self._answered)
        await self._answer()

    async def declare_exchange(self, name: str, *, passive: bool = False) -> None:
        self._channel.exchange_declare(name, "topic", passive=passive, durable=True, callback=self._answered)
        await self._answer()

    async def have(self, exchange: str, routing_key: str) -> None:
        """Make the queue, or the exchange, unless it was made before."""
        place = (exchange, "" if exchange else routing_key)
        if place in self._had:
            return
        async with self._declaring:  # one question at a time
            if self._reason is not None:
                raise self._reason
            if place not in self._had:
                await (self.declare_exchange(exchange) if exchange else self.declare_queue(routing_key))
                self._had.add(place)

    # --- messages

    def send(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: BasicProperties,
        mandatory: bool,
        message: Message,
        call: Call,
    ) -> None:
        if self._reason is not None:
            raise self._reason
        try:
            self._channel.basic_publish(exchange, routing_key, body, properties, mandatory)
        except (AMQPError, ValueError, UnicodeError) as error:
            if not self._channel.is_open:
                raise DestinationUnavailable(describe(error)) from error
            raise MessageRejected(f"it cannot be sent like this: {describe(error)}", permanent=True) from error
        self._tag += 1
        self._unconfirmed[self._tag] = _Sent(message, call, exchange)
        call.sent()

    def forget(self, call: Call, *, is_silent: bool) -> None:
        """Whoever waited for these is gone. What was not sent yet must not be, and a connection that confirmed nothing
        all the time may be dead, though nobody has closed it."""
        self._unconfirmed = {
            tag: sent._replace(call=None) if sent.call is call else sent for tag, sent in self._unconfirmed.items()
        }
        if is_silent:
            self._hang_up()
        elif self._connection is not None and self._connection.has_unsent():
            self._hang_up(NotAttempted("another call on the same connection was given up"))

    def _is_returned(self, _: object, method: Any, properties: Any, __: bytes) -> None:
        """Comes before the confirmation."""
        place = f"exchange {method.exchange!r}" if method.exchange else "the default exchange"
        text = f"{method.reply_code} {method.reply_text}: {place} has no queue for {method.routing_key!r}"
        # There the routing key is the name of a queue, so that is missing; elsewhere nobody may want this message.
        is_missing = not method.exchange
        self._returned[properties.message_id] = DestinationUnavailable(text) if is_missing else MessageRejected(text)

    def _confirmed(self, frame: Any) -> None:
        self.heard += 1
        answer, tag = frame.method, frame.method.delivery_tag
        refused = isinstance(answer, Basic.Nack)
        last = tag or self._tag
        tags = list(takewhile(lambda each: each <= last, self._unconfirmed)) if answer.multiple else [tag]
        for each in tags:
            sent = self._unconfirmed.pop(each, None)
            if sent is None:
                continue
            reason = self._returned.pop(sent.message.id, None)
            if sent.call is not None:
                sent.call.answer(sent.message, _judged(refused, reason))


def _judged(refused: bool, returned: Exception | None) -> Exception | None:
    if returned is not None:
        return returned
    if refused:
        return DestinationUnavailable("the broker refused it: a queue is full, or could not store it")
    return None


def _is_about(reason: object, exchange: str) -> bool:
    """Whether the broker has closed a channel because this exchange is missing, or not for us."""
    return (
        isinstance(reason, ChannelClosedByBroker)
        and reason.reply_code in (ACCESS_REFUSED, NOT_FOUND)
        and f"exchange '{exchange or DEFAULT_EXCHANGE}'" in reason.reply_text
    )


def _outage(reason: object) -> BaseException:
    """Whatever ends a connection or a channel, unless it says itself whose fault that is."""
    if isinstance(reason, (DestinationUnavailable, NotAttempted)):
        return reason
    return DestinationUnavailable(_words(reason))


def _words(reason: object) -> str:
    """The broker's, if it said any."""
    if isinstance(reason, ChannelClosedByBroker):
        return f"{reason.reply_code} {reason.reply_text}"
    causes = getattr(reason, "exceptions", None) or (reason,)
    cause: object = causes[-1]
    while (inner := getattr(cause, "exception", None)) is not None:
        cause = inner
    return describe(cause) if isinstance(cause, BaseException) else repr(cause)
