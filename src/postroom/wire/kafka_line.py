"""A producer of Kafka's client on an event loop, and what became of the records that it was given."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from ..message import Message

QUIET = logging.getLogger("postroom.kafka.client")
QUIET.disabled = True
"""What librdkafka has to say is in our errors. It would say it several times a second."""

SHORTEST, LONGEST, IDLE = 0.001, 0.005, 0.1
"""Seconds between two looks at what the client has to report: as long as there is something, as long as somebody waits
for it, and else."""
FAREWELL = 1.0
"""Seconds that the client may take to report what it does not send any more."""
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Given up by us: it may have arrived or not."""


class Record(NamedTuple):
    message: Message
    topic: str
    key: bytes | None
    payload: bytes | None
    headers: dict[str, bytes]
    """The garbage collector has nothing to do with it, other than with a list of pairs."""


class Flight:
    """Records, at least one, that were handed over together."""

    def __init__(self, records: Sequence[Record], line: Line, over: asyncio.Future[None]) -> None:
        self.records = records
        self.delivered: list[Record] = []
        self.failed: list[tuple[Record, KafkaError]] = []
        self.left = len(records)
        self.over = over
        self._line = line

    def landed(self, record: Record, error: KafkaError | None = None, _: object = None) -> None:
        if error is None:
            self.delivered.append(record)
        else:
            self.failed.append((record, error))
            self._line.note(error)
        self.left -= 1
        if not self.left:
            self._line.under_way -= 1
            if not self.over.done():
                self.over.set_result(None)

    def unheard(self) -> list[Record]:
        heard = {id(record) for record in (*self.delivered, *(record for record, _ in self.failed))}
        return [record for record in self.records if id(record) not in heard]


class Line:
    """A producer that is of no use any more after a fatal error.

    The client collects its reports and hands them over when it is asked, which is done on the event loop: a thread that
    waits for them would fight for the interpreter with everybody else, once for each message.
    """

    def __init__(self, settings: Mapping[str, object], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST
        self.under_way = 0
        """Flights that are not over."""
        self._ended_at: float | None = None
        self.has_failed = False
        """Something was refused for good, and everything after it with it."""
        self.trouble: str | None = None
        """Why nothing may be heard: the client tries again, and says so only beside."""
        self._producer: Any = Producer({**settings, "error_cb": self.note, "logger": QUIET})
        self._look_in(IDLE)

    @property
    def is_broken(self) -> bool:
        return self.has_failed or self._ended_at is not None

    def send(self, records: Sequence[Record]) -> Flight:
        """Hand them over, each unless one before it of its key was not taken."""
        self.under_way += 1
        flight = Flight(records, self, self._loop.create_future())
        refused: dict[tuple[str, str | None], KafkaError] = {}
        try:
            for record in records:
                error = refused.get(_lane(record)) if refused else None
                error = error or self._produce(record, flight)
                if error is not None:
                    flight.landed(record, error)
                    if record.key is not None:
                        refused[_lane(record)] = error
        except BaseException:
            self.end()  # nobody would hear of those that were taken
            raise
        self._pause = SHORTEST
        self._look_in(SHORTEST)
        return flight

    def hear(self) -> None:
        """What the client has to report at this moment."""
        if self._producer is None:
            return
        try:
            heard = self._producer.poll(0)
        except KafkaException as error:
            self.note(error.args[0])
            heard = 0
        self._pause = SHORTEST if heard else min(2 * self._pause, LONGEST)

    def end(self) -> None:
        """What was not sent yet is not sent any more. Who waits for it is told."""
        if self._ended_at is None:
            self._ended_at = self._loop.time()
            purge(self._producer)
        if self._producer is None:
            return
        if self._loop is _running_loop():
            self._look_in(SHORTEST)
        else:
            self._let_go()

    async def close(self) -> None:
        """End, and wait until it is over."""
        self.end()
        for _ in range(int(FAREWELL / LONGEST)):
            if self._producer is None:
                return
            await asyncio.sleep(LONGEST)
        self._let_go()

    def _produce(self, record: Record, flight: Flight) -> KafkaError | None:
        _, topic, key, payload, headers = record
        try:
            self._producer.produce(topic, payload, key, on_delivery=partial(flight.landed, record), headers=headers)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if _is_fatal(reason):
                self.note(reason)
            return reason
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        return None

    def _look_in(self, seconds: float) -> None:
        """Or earlier, if that is intended already."""
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self.hear()
        finally:
            if self._ended_at is None:
                self._look_in(self._pause if self.under_way else IDLE)
            elif len(self._producer) and self._loop.time() < self._ended_at + FAREWELL:
                self._look_in(self._pause)
            else:
                self._let_go()

    def note(self, error: KafkaError) -> None:
        """Only what is fatal ends the producer: the rest it mends by itself, or the relay's patience ends."""
        if self.trouble is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.trouble = words(error)
        if not self.has_failed and _is_fatal(error):
            self.has_failed = True
            purge(self._producer)

    def _let_go(self) -> None:
        """The client closes its connections when the last one forgets it, which takes a while."""
        if self._timer is not None:
            self._timer.cancel()
        producer, self._producer = [self._producer], None
        threading.Thread(target=producer.clear, name="postroom-kafka", daemon=True).start()


def purge(producer: Producer) -> None:
    """Have the client report, soon, everything that it has. It does not wait, as the client has this flag the wrong way
    round: else all threads of the interpreter would wait for a thread of the client that may be looking up a name."""
    producer.purge(in_queue=True, in_flight=True, blocking=True)


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL


def _lane(record: Record) -> tuple[str, str | None]:
    return record.message.topic, record.message.key


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def words(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
