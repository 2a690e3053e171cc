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

SHORTEST, LONGEST = 0.001, 0.1
"""Seconds between two looks at what the client has to report. While it has nothing, they become longer."""


class Record(NamedTuple):
    message: Message
    topic: str
    key: bytes | None
    payload: bytes | None
    headers: dict[str, str]


class Flight:
    """Records that were handed over together."""

    def __init__(self, records: Sequence[Record], loop: asyncio.AbstractEventLoop) -> None:
        self.records = records
        self.delivered: list[Record] = []
        self.failed: list[tuple[Record, KafkaError]] = []
        self.left = len(records)
        self.over: asyncio.Future[None] = loop.create_future()

    def landed(self, record: Record, error: KafkaError | None = None, _: object = None) -> None:
        if error is None:
            self.delivered.append(record)
        else:
            self.failed.append((record, error))
        self.left -= 1
        if not self.left and not self.over.done():
            self.over.set_result(None)


class Line:
    """A producer that is of no use any more after a fatal error.

    The client collects its reports and hands them over when it is asked, which is done on the event loop: a thread that
    waits for them would fight for the interpreter with everybody else, once for each message.
    """

    def __init__(self, settings: Mapping[str, object], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST
        self._has_ended = False
        self.has_failed = False
        """Something was refused for good, and everything after it with it."""
        self.trouble: str | None = None
        """Why nothing may be heard: the client tries again, and says so only beside."""
        self._producer: Any = Producer({**settings, "error_cb": self._note, "logger": QUIET})
        self._listen()

    @property
    def is_broken(self) -> bool:
        return self.has_failed or self._has_ended

    def send(self, records: Sequence[Record]) -> Flight:
        """Hand them over, each unless one before it of its key was not taken."""
        flight = Flight(records, self._loop)
        refused: dict[tuple[str, str | None], KafkaError] = {}
        for record in records:
            error = refused.get(_lane(record)) if refused else None
            error = error or self._produce(record, flight)
            if error is not None:
                flight.landed(record, error)
                if record.key is not None:
                    refused[_lane(record)] = error
        self._pause = SHORTEST
        self._listen()
        return flight

    def _produce(self, record: Record, flight: Flight) -> KafkaError | None:
        _, topic, key, payload, headers = record
        try:
            self._producer.produce(topic, payload, key, on_delivery=partial(flight.landed, record), headers=headers)
        except KafkaException as error:
            return error.args[0]
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        return None

    def end(self) -> None:
        """What was not sent yet is not sent any more. Who waits for it is told."""
        if self._has_ended:
            return
        self._has_ended = True
        self._purge()
        self._pause = SHORTEST
        self._listen()

    def _listen(self) -> None:
        """Look soon, and from then on again and again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._producer is None:
            return
        if self._loop.is_closed() or (self._has_ended and not len(self._producer)):
            producer, self._producer = self._producer, None
            threading.Thread(target=_let_go, args=[[producer]], name="postroom-kafka", daemon=True).start()
        else:
            self._timer = self._loop.call_later(self._pause, self._look)

    def _look(self) -> None:
        try:
            heard = self._producer.poll(0)
        except KafkaException as error:
            self._note(error.args[0])
            heard = 0
        self._pause = SHORTEST if heard else min(2 * self._pause, LONGEST)
        self._listen()

    def _note(self, error: KafkaError) -> None:
        """Only what is fatal ends the producer: the rest it mends by itself, or the relay's patience ends."""
        if self.trouble is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.trouble = words(error)
        if not self.has_failed and (error.fatal() or error.code() == KafkaError._FATAL):
            self.has_failed = True
            self._purge()

    def _purge(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)


def _lane(record: Record) -> tuple[str, str | None]:
    return record.message.topic, record.message.key


def _let_go(producer: list[Any]) -> None:
    """The client closes its connections when the last one forgets it, which takes a while."""
    producer.clear()


def words(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
