"""MQTT 5, with an acknowledgement for each message (QoS 1)."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ..clock import Clock, SystemClock
from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import redact
from ..wire import tls
from ..wire.calls import Call
from ..wire.envelope import DEFAULT_SOURCE, Envelope, Wrapped
from ..wire.findings import finding
from ..wire.lanes import Lanes, pieces
from ..wire.options import positive, take, truth, unusable
from ..wire.sessions import Sessions, Waiting, has_unsent
from ..wire.template import template

OPTIONS = {
    "topic": str,
    "retain": truth,
    "client_id": str,
    "keepalive": positive,
    "pipelined": truth,
    "format": str,
    "source": str,
    **tls.OPTIONS,
}
PORTS = {"mqtt": 1883, "mqtts": 8883}

CONNECT_TIMEOUT = 5.0
CLOSE_TIMEOUT = 2.0
REMEDY = "check the address, the user and the password in the URL, and whether the broker runs and speaks MQTT 5"

MOST_UNANSWERED = 1000
"""Messages; fewer where the broker says so."""
LARGEST_PIECE = 1024 * 1024
"""Bytes of payload that are written at once."""
LONGEST_TEXT = 65_535
LARGEST_PACKET = 268_435_455
"""Bytes, as the standard has it."""
LONGEST_SILENCE = 65_535
"""Seconds, as the standard has it."""

DELIVERED = frozenset({0x00, 0x10})
"""Answers that confirm: success, and success although nobody has subscribed."""
REFUSED = {0x90: "topic name invalid", 0x95: "packet too large", 0x99: "payload format invalid"}
"""Answers that are about the message."""
UNAVAILABLE = {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x87: "not authorized",
    0x91: "packet identifier in use",
    0x97: "quota exceeded",
}

# A broker may hang up on these, which the standard allows.
UNSPEAKABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
WILDCARD = re.compile("[+#]")

QUICK: int | None = getattr(socket, "TCP_QUICKACK", None)


class MqttPublisher:
    """`mqtt://user:password@host:1883`, `mqtts://…` with TLS.

    `topic`: a template, `{topic}` unless given. `retain`: the broker keeps the latest message of each topic.
    `client_id`: the broker chooses one unless given. `keepalive`: seconds after which a silent connection is tested.

    A broker may refuse one message and take the next, so the relay keeps one unanswered message per key. With
    `pipelined` it does not, and what follows a refused message in its key may arrive before it.
    """

    def __init__(
        self,
        url: str = "mqtt://localhost:1883",
        *,
        topic: str = "{topic}",
        retain: bool = False,
        client_id: str = "",
        keepalive: int = 60,
        pipelined: bool = False,
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
        clock: Clock | None = None,
    ) -> None:
        place, given = take(url, OPTIONS)
        self.name = redact(place)
        self._topic = template("topic", given.get("topic", topic))
        self.features = Features(ordered=given.get("pipelined", pipelined))
        # Attributes of CloudEvents have no prefix in MQTT.
        self._envelope = Envelope(given.get("format", format), given.get("source", source), prefix="")
        self._clock = clock or SystemClock()
        broker = _broker(place, url, given)
        broker.client_id = given.get("client_id", client_id)
        broker.keepalive = given.get("keepalive", keepalive)
        broker.retain = given.get("retain", retain)
        if not 0 < broker.keepalive <= LONGEST_SILENCE:
            raise ConfigurationError(
                f"keepalive must be between 1 and {LONGEST_SILENCE} seconds, not {broker.keepalive}"
            )
        self._sessions = Sessions[Session](lambda: _open(broker))
        self._stranger = replace(broker, client_id="")

    async def publish(self, batch: Batch) -> None:
        lanes = Lanes(batch)
        call = Call(lanes)
        session = await self._sessions.take()
        since = asyncio.get_running_loop().time()
        try:
            for piece in self._pieces(batch.messages, session.most):
                await session.wait_for_room(len(piece))
                if lanes.may_start(piece):
                    session.send(self._packets(piece, lanes, session.largest), call)
                    await session.wait_until_written()
            await session.wait_for_answers(call)
        except BaseException:
            if call.is_open:
                session.give_up(call, since, batch.timeout)
            raise

    async def close(self) -> None:
        await self._sessions.close()

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        """Topics need not be made; whether we may publish to them shows only when we do. Whoever asks comes without the
        client id, or the broker would put out the relay that has it."""
        try:
            session = await _open(self._stranger)
        except Exception as error:
            return [finding("problem", f"{self.name}: {describe(error)}", REMEDY)]
        await session.close()
        return [finding("ok", f"{self.name} lets us in")]

    def _pieces(self, messages: Sequence[Message], most: int) -> Iterator[Sequence[Message]]:
        longest = max(1, most // 4)  # so that there is always something under way
        for piece in pieces(messages, LARGEST_PIECE):
            for first in range(0, len(piece), longest):
                yield piece[first : first + longest]

    def _packets(self, messages: Sequence[Message], lanes: Lanes, largest: int) -> list[Packet]:
        packets: list[Packet] = []
        for message in lanes.open(messages):
            try:
                packets.append(self._packet(message, largest))
            except MessageRejected as error:
                lanes.answer(message, error)
        return packets

    def _packet(self, message: Message, largest: int) -> Packet:
        topic = self._topic(message)
        if not topic or WILDCARD.search(topic):
            raise MessageRejected(f"{topic!r} is no topic that one may publish to", permanent=True)
        wrapped = self._envelope.wrap(message)
        packet = Packet(message, topic, wrapped.payload or b"", self._properties(message, wrapped))
        if (size := packet.size) > largest:
            raise MessageRejected(
                f"it has {size:,} bytes with its properties, and the broker takes {largest:,}", permanent=True
            )
        return packet

    def _properties(self, message: Message, wrapped: Wrapped) -> bytes:
        block = b"".join([b"\x26%b%b" % (_text(name), _text(value)) for name, value in wrapped.headers.items()])
        if wrapped.content_type is not None:
            block += b"\x03" + _text(wrapped.content_type)
        if message.expires_at is not None:
            block += b"\x02" + _seconds_until(message.expires_at, self._clock.now()).to_bytes(4, "big")
        return _length(len(block)) + block


class Packet(NamedTuple):
    message: Message
    topic: str
    payload: bytes
    properties: bytes

    @property
    def size(self) -> int:
        """On the wire."""
        rest = len(_text(self.topic)) + 2 + len(self.properties) + len(self.payload)
        return 1 + len(_length(rest)) + rest


class Packed(Properties):
    """Properties that are packed already: the client's own take longer than all the rest."""

    _block: bytes

    def __init__(self, block: bytes) -> None:
        object.__setattr__(self, "_block", block)  # it has opinions about names

    def pack(self) -> bytes:
        return self._block


def _text(text: str) -> bytes:
    if found := UNSPEAKABLE.search(text):
        raise MessageRejected(f"MQTT cannot carry {found[0]!r}, as in {text[:40]!r}", permanent=True)
    data = text.encode()
    if len(data) > LONGEST_TEXT:
        raise MessageRejected(f"MQTT carries texts of {LONGEST_TEXT:,} bytes at most: {text[:40]!r}…", permanent=True)
    return len(data).to_bytes(2, "big") + data


def _length(number: int) -> bytes:
    """Seven bits to a byte, the lowest first."""
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def _seconds_until(moment: datetime, now: datetime) -> int:
    return min(max(1, math.ceil((moment - now).total_seconds())), 2**32 - 1)


def _verdict(code: int, why: str) -> Exception:
    """What an acknowledgement says that is none."""
    if code in REFUSED:
        return MessageRejected(f"{REFUSED[code]}{why}")
    return DestinationUnavailable(f"{UNAVAILABLE.get(code, f'reason code {code:#04x}')}{why}")


def _reason(block: bytearray) -> str:
    """What the broker adds to a refusal, if anything."""
    said: Any = Properties(PacketTypes.PUBACK)
    with suppress(Exception):
        said.unpack(block)
    return f": {said.ReasonString}" if hasattr(said, "ReasonString") else ""


# --- connections


@dataclass(slots=True, kw_only=True)
class Broker:
    """Where it is, and who we are there."""

    host: str
    port: int
    user: str | None
    password: str | None
    tls: ssl.SSLContext | None
    client_id: str = ""
    keepalive: int = 60
    retain: bool = False


def _broker(place: str, url: str, given: dict[str, Any]) -> Broker:
    try:
        parts = urlsplit(place)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise unusable(url, f"is no address of a broker: {error}") from None
    if parts.scheme not in PORTS or not host or parts.path.strip("/"):
        raise unusable(url, "is no address of a broker: write 'mqtt://host:1883'")
    if parts.scheme == "mqtt" and (lonely := [name for name in tls.OPTIONS if name in given]):
        raise ConfigurationError(f"{lonely[0]} is for TLS: write 'mqtts://'")
    return Broker(
        host=host,
        port=port or PORTS[parts.scheme],
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        tls=tls.context(given) if parts.scheme == "mqtts" else None,
    )


async def _open(broker: Broker) -> Session:
    session = Session(broker)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await session.open()
    except BaseException as error:
        session.abort("it was never made")
        if isinstance(error, Exception) and not isinstance(error, DestinationUnavailable):
            raise DestinationUnavailable(f"{broker.host}:{broker.port}: {describe(error)}") from None
        raise
    return session


class Wire(asyncio.Protocol):
    """What the client takes for its socket, so that connecting, TLS and writing are asyncio's and can be given up."""

    def __init__(self, told: Callable[[], bool], ended: Callable[[Exception | None], None]) -> None:
        self._told, self._ended = told, ended
        self._transport: asyncio.Transport | None = None
        self._incoming = bytearray()
        self._outgoing: list[bytes] = []
        self.writable, self.closed = asyncio.Event(), asyncio.Event()
        self.writable.set()

    def flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.write(b"".join(outgoing))

    def has_unsent(self) -> bool:
        return bool(self._outgoing) or (self._transport is not None and has_unsent(self._transport))

    def abort(self) -> None:
        self._outgoing.clear()
        self.writable.set()
        if self._transport is not None:
            self._transport.abort()

    # --- as the client sees it

    def recv(self, size: int) -> bytes:
        if not self._incoming:
            raise BlockingIOError
        data = bytes(self._incoming[:size])
        del self._incoming[:size]
        return data

    def send(self, data: bytes) -> int:
        self._outgoing.append(bytes(data))
        return len(data)

    def close(self) -> None:
        self.flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def fileno(self) -> int:
        return -1

    def setblocking(self, flag: bool) -> None:
        pass

    # --- as asyncio sees it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._acknowledge()
        self._incoming += data
        while self._incoming and self._told():
            pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._ended(exc)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def _acknowledge(self) -> None:
        """At once. A broker that saves packets would otherwise wait 40 ms with the rest of its answers."""
        if QUICK is not None and self._transport is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, QUICK, 1)


class Session(Waiting, Client):
    """A client that never connects again by itself, and its unanswered messages.

    aiomqtt will not do: it does not tell what an acknowledgement says, and so takes a refusal for a success.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=broker.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        if broker.user is not None:
            self.username_pw_set(broker.user, broker.password)
        self.max_inflight_messages_set(0)  # as many as we hand over
        self.on_connect = self._welcomed
        self.on_disconnect = self._dismissed
        self.broker = broker
        self.most, self.largest = 0, 0
        """How many messages may be unanswered, and how many bytes one may have; known once we are let in."""
        self._wire = Wire(self._read, self._ended)
        self._sent: dict[int, tuple[Message, Call | None]] = {}
        """With the call that waits for the answer, if it still does."""
        self._news = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        broker = self.broker
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self._wire, broker.host, broker.port, ssl=broker.tls)
        self.connect(broker.host, broker.port, broker.keepalive, clean_start=True)
        self._wire.flush()
        while not self.most:
            self._check()
            await self._hear()
        self._tending = loop.create_task(self._tend())

    async def close(self) -> None:
        """With a goodbye."""
        self.lost, self.on_disconnect = "the publisher was closed", None
        self.disconnect()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._wire.closed.wait()
        self.abort(self.lost)

    # --- messages

    async def wait_for_room(self, number: int) -> None:
        while self.lost is None and len(self._sent) + number > self.most:
            await self._hear()
        self._check()

    def send(self, packets: Sequence[Packet], call: Call) -> None:
        for message, topic, payload, properties in packets:
            info = self.publish(topic, payload, 1, self.broker.retain, Packed(properties))
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise DestinationUnavailable(f"the client does not take it: {info.rc.name}")
            self._sent[info.mid] = message, call
            call.sent()
        self._wire.flush()

    async def wait_until_written(self) -> None:
        await self._wire.writable.wait()
        self._check()

    def abort(self, why: str) -> None:
        if self.lost is None:
            self.lost = f"{self.broker.host}:{self.broker.port}: {why}"
        if self._tending is not None:
            self._tending.cancel()
        self._wire.abort()
        self._news.set()

    def _forget(self, call: Call) -> None:
        """The broker still counts them among what may be unanswered."""
        self._sent = {mid: (message, None if other is call else other) for mid, (message, other) in self._sent.items()}

    def _has_unsent(self) -> bool:
        return self.want_write() or self._wire.has_unsent()

    # --- what happens

    async def _tend(self) -> None:
        """Show signs of life, and end with the loop."""
        try:
            while self.lost is None:
                await asyncio.sleep(max(self.keepalive, 4) / 4)
                self.loop_misc()
                self._wire.flush()
        finally:
            self.abort("it is not used any more")

    def _read(self) -> bool:
        """Whether one may go on."""
        return self.loop_read() == MQTTErrorCode.MQTT_ERR_SUCCESS

    def _ended(self, error: Exception | None) -> None:
        self.abort("the broker hung up" if error is None else describe(error))

    def _welcomed(
        self, client: Client, userdata: Any, flags: Any, reason_code: ReasonCode, properties: Properties | None
    ) -> None:
        allowed = {} if properties is None else cast("dict[str, int]", properties.json())
        if reason_code.is_failure:
            self.abort(f"the broker does not let us in: {reason_code}")
        elif allowed.get("MaximumQoS") == 0:
            self.abort("the broker acknowledges nothing (it takes QoS 0 only)")
        elif self.broker.retain and allowed.get("RetainAvailable") == 0:
            self.abort("the broker retains nothing: leave retain=true out")
        else:
            self.most = min(allowed.get("ReceiveMaximum", MOST_UNANSWERED), MOST_UNANSWERED)
            self.largest = allowed.get("MaximumPacketSize", LARGEST_PACKET)
            self._news.set()

    def _dismissed(
        self, client: Client, userdata: Any, flags: Any, reason_code: ReasonCode, properties: Properties | None
    ) -> None:
        self.abort(f"the connection is lost: {reason_code}")

    def _handle_pubackcomp(self, cmd: Any) -> MQTTErrorCode:
        """The client hangs up when it does not know a reason code, such as Mosquitto's for what is too large."""
        packet = self._in_packet["packet"]
        mid, code = int.from_bytes(packet[:2], "big"), packet[2] if len(packet) > 2 else 0
        self._out_messages.pop(mid, None)
        if (sent := self._sent.pop(mid, None)) is not None and self.lost is None:
            message, call = sent
            if call is not None:
                call.answer(message, None if code in DELIVERED else _verdict(code, _reason(packet[3:])))
            self._note_answer()
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _create_socket(self) -> Any:
        return self._wire
