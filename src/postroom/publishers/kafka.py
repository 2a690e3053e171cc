"""Kafka, through librdkafka's idempotent producer."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException, Producer

from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import redact
from ..wire.envelope import CONTENT_TYPE, DEFAULT_SOURCE, Envelope
from ..wire.findings import finding
from ..wire.kafka_line import PURGED, QUIET, Flight, Line, Record, words
from ..wire.kafka_transactions import Slot, Transactions, is_fenced
from ..wire.lanes import Lanes
from ..wire.options import take, truth, unusable
from ..wire.template import names_for, template

OPTIONS = {"topic": str, "format": str, "source": str, "transactional": str, "unsafe": truth}
GUARANTEES: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,
}
"""Without them messages get lost or out of order. What fails takes everything after it along: nothing overtakes it, and
the producer is made anew. When to give up is the relay's decision."""
ALIASES = {"delivery.timeout.ms": "message.timeout.ms", "request.required.acks": "acks"}
DEFAULTS: Mapping[str, object] = {
    "partitioner": "murmur2_random",
    "linger.ms": 2,
    "topic.metadata.propagation.max.ms": 5_000,
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
}
"""`murmur2_random` is how the Java client chooses a partition."""
TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
MAX_BYTES, DEFAULT_MAX_BYTES = "message.max.bytes", 1_000_000
"""What the client takes; a broker, or a topic, may take less."""
CONNECT_TIMEOUT = 10.0
OWN_HEADERS = 8_192
"""More bytes than our own headers and a key ever have."""
FAREWELL = 0.1
"""Seconds that a call which is given up waits until its records are."""
PROGRESS = 0.1
"""Seconds after which it is told what is delivered so far, if that is not all."""
REMEDY = "check the addresses and the credentials in the URL, and whether the brokers run"

MESSAGE_ERRORS = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError.TOPIC_EXCEPTION, KafkaError._INVALID_ARG,
})  # fmt: skip
"""The message is to blame. Else it is the cluster: out of reach, overloaded, without the topic or the right to it."""


class KafkaPublisher:
    """`kafka://host:9092,other:9092`. A message is delivered when all replicas in sync have it.

    `topic`: a template, `{topic}` unless given. `transactional`: what transactional ids begin with; messages are then
    sent in transactions that only the owner of their slot can commit. Any other option is librdkafka's, such as
    `compression.type=lz4` or `security.protocol=SASL_SSL`; a user and a password in the URL are `sasl.username` and
    `sasl.password`.
    """

    def __init__(
        self,
        url: str = "kafka://localhost:9092",
        *,
        topic: str = "{topic}",
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
        transactional: str | None = None,
        unsafe: bool = False,
        **settings: object,
    ) -> None:
        place, given = _split(url)
        self.name = redact(place)
        topic = given.pop("topic", topic)
        self._topic = template("topic", topic)
        self._envelope = Envelope(given.pop("format", format), given.pop("source", source), prefix="ce_")
        is_unsafe = given.pop("unsafe", unsafe)
        prefix = _prefix(given.pop("transactional", transactional), is_unsafe)
        self._settings = _settings(place, {**settings, **given}, is_unsafe, url)
        self._max_bytes = int(str(self._settings.get(MAX_BYTES, DEFAULT_MAX_BYTES)))
        # One topic may be missing while another takes what comes later in the key; in a transaction all fail together.
        is_ordered = prefix is not None or "{type}" not in topic
        self.features = Features(ordered=is_ordered, max_size=self._max_bytes)
        self._lines: dict[bool, Line] = {}
        """One for many, and one for those that are tried alone: what is beside them may be bad, too."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alone = asyncio.Lock()
        self._transactions = None if prefix is None else Transactions({**self._settings, "logger": QUIET}, prefix)

    async def publish(self, batch: Batch) -> None:
        lanes = Lanes(batch)
        if not lanes.may_start(batch.messages):
            return
        records = self._records(batch.messages, lanes)
        if self._transactions is not None:
            await self._commit(self._transactions, records, lanes, batch.timeout)
            return
        if records:
            await self._try_alone((await self._send(records, lanes, is_final=False)).suspects, lanes)

    async def close(self) -> None:
        lines = [*self._lines.values()]
        self._end_lines()
        await asyncio.gather(*(line.close() for line in lines))
        if self._transactions is not None:
            await self._transactions.close()

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        names = sorted(names_for(self._topic, topics))
        try:
            lacking = await asyncio.to_thread(_lacking, self._settings, names)
        except KafkaException as error:
            return [finding("problem", f"{self.name}: {words(error.args[0])}", REMEDY)]
        if lacking:
            return [
                finding("problem", f"{self.name}: no topic {', '.join(lacking)}", "create it, or grant the right to it")
            ]
        return [finding("ok", f"{self.name} answers")]

    def _records(self, messages: Sequence[Message], lanes: Lanes) -> list[Record]:
        records: list[Record] = []
        for message in lanes.open(messages):
            try:
                records.append(self._record(message))
            except MessageRejected as error:
                lanes.answer(message, error)
        return records

    def _record(self, message: Message) -> Record:
        topic = self._topic(message)
        if not _can_be_topic(topic):
            raise MessageRejected(f"{topic!r} cannot be the name of a topic of Kafka", permanent=True)
        headers, payload, content_type = self._envelope.wrap(message)
        if content_type is not None:
            headers[CONTENT_TYPE] = content_type
        try:
            spelled = {name: value.encode() for name, value in headers.items()}
        except UnicodeEncodeError as error:
            raise MessageRejected(f"Kafka cannot carry one of its headers: {error}", permanent=True) from None
        record = Record(message, topic, None if message.key is None else message.key.encode(), payload, spelled)
        if message.headers or len(payload or b"") > self._max_bytes - OWN_HEADERS:
            self._check(record)
        return record

    def _check(self, record: Record) -> None:
        _, _, key, payload, headers = record
        size = len(key or b"") + len(payload or b"") + sum(_size(name, value) for name, value in headers.items())
        if size > self._max_bytes:
            raise MessageRejected(
                f"it has {size:,} bytes with its key and headers, and {MAX_BYTES} is {self._max_bytes:,}",
                permanent=True,
            )

    async def _try_alone(self, suspects: Sequence[Record], lanes: Lanes) -> None:
        """One bad record fails those beside it and after it, so nobody is blamed before being tried alone."""
        for position, record in enumerate(suspects):
            if not lanes.may_start([each.message for each in suspects[position:]]):
                return
            for _ in lanes.open([record.message]):
                async with self._alone:
                    telling = await self._send([record], lanes, is_final=True)
                if telling.is_outage:  # none of them is to blame, and each would need a producer of its own
                    for each in suspects[position + 1 :]:
                        lanes.answer(each.message, NotAttempted("the brokers do not take another one"))
                    return

    async def _send(self, records: Sequence[Record], lanes: Lanes, *, is_final: bool) -> _Telling:
        line = self._line(is_final)
        flight = line.send(records)
        telling = _Telling(flight, line, lanes, is_final=is_final)
        try:
            while not (await asyncio.wait([flight.over], timeout=PROGRESS))[0]:
                telling.tell()
        except asyncio.CancelledError:
            line.hear()
            telling.tell()
            for record in flight.unheard() if line.trouble else ():
                lanes.answer(record.message, DestinationUnavailable(f"no answer in time: {line.trouble}"))
            raise
        finally:
            if flight.left or line.is_broken:
                line.end()
                await asyncio.wait([flight.over], timeout=FAREWELL)  # then nothing of it leaves any more
        telling.tell_all()
        return telling

    async def _commit(
        self, transactions: Transactions, records: Sequence[Record], lanes: Lanes, timeout: float
    ) -> None:
        """A transaction for each slot. They do not wait for each other."""
        owned: dict[tuple[int, int], list[Record]] = {}
        for record in records:
            owned.setdefault((record.message.slot, record.message.epoch), []).append(record)
        async with asyncio.TaskGroup() as tasks:
            for (number, epoch), some in owned.items():
                tasks.create_task(self._commit_in_turn(transactions.slot(number), epoch, some, lanes, timeout))

    async def _commit_in_turn(
        self, slot: Slot, epoch: int, records: Sequence[Record], lanes: Lanes, timeout: float
    ) -> None:
        async with slot.turn:
            parts: deque[Sequence[Record]] = deque([records])
            while parts:
                some = [record for record in parts.popleft() for _ in lanes.open([record.message])]
                messages = [record.message for record in some]
                if not some or not lanes.may_start(messages):
                    continue
                if (error := await slot.own(epoch, timeout)) is None:
                    # Asked again, now that the next owner would fence us off: until here the lease has been ours.
                    if not lanes.may_start(messages):
                        continue
                    error = await slot.send(some, timeout)
                    if error is not None and (rest := _parts(some, error)):
                        parts.extendleft(reversed(rest))
                        continue
                for message in messages:
                    lanes.answer(message, None if error is None else _judged(error))

    def _line(self, is_for_one: bool) -> Line:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._end_lines()
            self._loop = loop
        line = self._lines.get(is_for_one)
        if line is None or line.is_broken:
            if line is not None:
                line.end()
            try:
                line = self._lines[is_for_one] = Line(self._settings, loop)
            except KafkaException as error:  # the settings are good, so it is a file that is gone, or the machine
                raise DestinationUnavailable(words(error.args[0])) from None
        return line

    def _end_lines(self) -> None:
        for line in self._lines.values():
            line.end()
        self._lines.clear()
        self._alone = asyncio.Lock()


class _Telling:
    """What is told of a flight by and by."""

    def __init__(self, flight: Flight, line: Line, lanes: Lanes, *, is_final: bool) -> None:
        self.suspects: list[Record] = []
        """To be tried again, one by one."""
        self.is_outage = False
        self._flight, self._line, self._lanes = flight, line, lanes
        self._is_final = is_final
        self._delivered = self._failed = 0
        """How many of them have been told."""

    def tell(self) -> None:
        """What has become known since."""
        flight = self._flight
        for record in flight.delivered[self._delivered :]:
            self._line.trouble = None
            self._lanes.answer(record.message)
        for record, error in flight.failed[self._failed :]:
            if error.code() in PURGED and not self._line.has_failed:
                self._lanes.answer(record.message, NotAttempted("another call to the same brokers was given up"))
            elif _is_suspicious(error, self._line) and not self._is_final:
                self.suspects.append(record)
            else:
                self._fail(record, _judged(error))
        self._delivered, self._failed = len(flight.delivered), len(flight.failed)

    def _fail(self, record: Record, error: Exception) -> None:
        self.is_outage = self.is_outage or isinstance(error, DestinationUnavailable)
        self._lanes.answer(record.message, error)

    def tell_all(self) -> None:
        """Nothing is open any more."""
        flight = self._flight
        is_whole = len(flight.delivered) == len(flight.records) and not self._delivered
        if is_whole and self._lanes.confirm_all(len(flight.records)):
            self._line.trouble = None
            return
        self.tell()
        places = {id(record): place for place, record in enumerate(flight.records)}
        self.suspects.sort(key=lambda record: places[id(record)])


@lru_cache
def _can_be_topic(topic: str) -> bool:
    return TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def _size(name: str, value: bytes) -> int:
    """Of a header, if it can be one: the client takes names as C has them, and does not look."""
    if "\0" in name:
        raise MessageRejected(f"Kafka cannot carry its header {name!r}: a zero", permanent=True)
    try:
        return len(name.encode()) + len(value)
    except UnicodeEncodeError as error:
        raise MessageRejected(f"Kafka cannot carry its header {name!r}: {error}", permanent=True) from None


def _is_suspicious(error: KafkaError, line: Line) -> bool:
    """Whether it may only have been beside a bad one."""
    return error.code() in MESSAGE_ERRORS or line.has_failed


def _parts(records: Sequence[Record], error: KafkaError) -> list[Sequence[Record]]:
    """What to try by itself of a transaction that failed: nobody is blamed for another, nor waits for its topic."""
    if error.code() in MESSAGE_ERRORS:
        half = len(records) // 2
        return [records[:half], records[half:]] if half else []
    topics: dict[str, list[Record]] = {}
    for record in records:
        topics.setdefault(record.message.topic, []).append(record)
    is_hopeless = is_fenced(error) or error.code() == KafkaError._TIMED_OUT
    return [] if is_hopeless or len(topics) == 1 else [*topics.values()]


def _judged(error: KafkaError) -> Exception:
    if error.code() in MESSAGE_ERRORS:
        return MessageRejected(words(error))
    if is_fenced(error):
        return DestinationUnavailable(f"another relay owns the slot by now: {words(error)}")
    return DestinationUnavailable(words(error))


def _lacking(settings: Mapping[str, object], names: Sequence[str]) -> list[str]:
    trouble: list[KafkaError] = []
    producer = Producer({**settings, "logger": QUIET, "error_cb": trouble.append})
    try:
        found = producer.list_topics(timeout=CONNECT_TIMEOUT).topics
    except KafkaException:
        producer.poll(0)  # why, is told apart
        if trouble:
            raise KafkaException(trouble[0]) from None
        raise
    return [name for name in names if name not in found or found[name].error is not None]


# --- settings


def _split(url: str) -> tuple[str, dict[str, Any]]:
    """librdkafka's options have a dot in their names, or are its own business: it checks them."""
    _, _, query = url.partition("?")
    theirs = {name for name in (pair.partition("=")[0] for pair in query.split("&")) if name and name not in OPTIONS}
    place, given = take(url, {**OPTIONS, **dict.fromkeys(theirs, str)})
    return place, given


def _prefix(transactional: str | None, is_unsafe: bool) -> str | None:
    if transactional == "":
        raise ConfigurationError("transactional= must say what the transactional ids begin with, such as 'shop'")
    if transactional is not None and is_unsafe:
        raise ConfigurationError("transactional and unsafe exclude each other: transactions need the guarantees")
    return transactional


def _settings(place: str, given: Mapping[str, object], is_unsafe: bool, url: str) -> dict[str, object]:
    parts = urlsplit(place)
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts or parts.path.strip("/") or parts.fragment:
        raise unusable(url, "names no brokers; write 'kafka://host:9092,other:9092'")
    if "transactional.id" in given:
        raise ConfigurationError(
            "transactional.id cannot be set, as each slot has its own; write transactional=shop for shop-0 to shop-63"
        )
    given = {ALIASES.get(name, name): value for name, value in given.items()}
    for name, value in GUARANTEES.items():
        if name in given and str(given[name]).lower() not in _same(value) and not is_unsafe:
            raise ConfigurationError(
                f"{name}={given[name]} can lose or reorder messages; leave it out, or insist with unsafe=true"
            )
    settings: dict[str, object] = {"bootstrap.servers": hosts, **DEFAULTS, **GUARANTEES, **given}
    if is_unsafe:
        settings = {name: value for name, value in settings.items() if name in given or name not in GUARANTEES}
    if parts.username:
        settings |= {"sasl.username": unquote(parts.username), "sasl.password": unquote(parts.password or "")}
        if not str(settings.get("security.protocol", "")).upper().startswith("SASL_"):
            raise ConfigurationError(
                f"{redact(url)!r} has a user, who would not be asked for: write security.protocol=SASL_SSL, or "
                "SASL_PLAINTEXT, and sasl.mechanism"
            )
    try:  # it knows which settings there are, and without an address it connects to nobody
        Producer({name: value for name, value in settings.items() if name != "bootstrap.servers"} | {"logger": QUIET})
    except KafkaException as error:
        raise unusable(url, f"is refused by the client: {words(error.args[0])}") from None
    return settings


def _same(value: object) -> set[str]:
    return {"all", "-1"} if value == "all" else {str(value).lower(), "1" if value is True else str(value).lower()}
