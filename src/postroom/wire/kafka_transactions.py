"""Transactions of Kafka that are bound to the lease of a slot.

Each slot has a transactional id. Whoever makes the next producer with that id, which is the next owner of the slot,
fences off the one before: the brokers abort what that one has not committed, and refuse what it still sends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ..message import SLOTS
from .kafka_line import PURGED, Record, purge

SLICE = 0.5
"""Seconds that a call of the client may block. It is made again as long as somebody waits for what comes of it. A busy
broker should be able to answer within one: a commit that is taken up again may fail although all is well."""
BLINK = 0.05
"""The same where nothing but the client is asked, and between two calls."""
FAREWELL = 1.0
"""Seconds to wait until a producer that is given up is gone."""
FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


def is_fenced(error: KafkaError) -> bool:
    return error.code() in FENCED


class Transactions:
    """The slots, each with a producer of its own from its first message on. Begins anew on another event loop."""

    def __init__(self, settings: Mapping[str, object], prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        # Not the loop's own threads: in an outage, every slot may have one that waits.
        self._threads = ThreadPoolExecutor(SLOTS, "postroom-kafka")
        self._slots: dict[int, Slot] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def slot(self, number: int) -> Slot:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._end()
            self._loop = loop
        if number not in self._slots:
            settings = {**self._settings, "transactional.id": f"{self._prefix}-{number}"}
            self._slots[number] = Slot(settings, self._threads)
        return self._slots[number]

    async def close(self) -> None:
        if ends := [asyncio.wrap_future(end) for end in self._end()]:
            await asyncio.wait(ends, timeout=FAREWELL)

    def _end(self) -> list[Future[None]]:
        slots, self._slots = self._slots, {}
        return [slot.end() for slot in slots.values()]


class Slot:
    """What is done with a slot's producer, by whoever has the turn."""

    def __init__(self, settings: Mapping[str, object], threads: ThreadPoolExecutor) -> None:
        self.turn = asyncio.Lock()
        self._settings = settings
        self._threads = threads
        self._epoch = -1
        self._line = _Line(settings)
        self._line.give_up()

    async def own(self, epoch: int, timeout: float) -> KafkaError | None:
        """See to a producer that was made in this ownership of the slot: those of earlier owners are fenced off."""
        if epoch < self._epoch:
            return KafkaError(
                KafkaError._FENCED, f"the lease with epoch {epoch} is over, there is one with {self._epoch}"
            )
        if epoch == self._epoch and not self._line.is_over:
            return None
        self.end()
        self._line, self._epoch = _Line(self._settings), epoch
        return await self._wait_for(self._line, self._line.open, timeout)

    async def send(self, records: Sequence[Record], timeout: float) -> KafkaError | None:
        """None: they are committed, all of them. Otherwise none of them is, unless the answer to a commit is missing.
        When cancelled, nothing is committed afterwards."""
        return await self._wait_for(self._line, self._line.send, records, timeout)

    def end(self) -> Future[None]:
        return self._threads.submit(self._line.end)

    async def _wait_for(
        self, line: _Line, work: Callable[..., KafkaError | None], *arguments: Any
    ) -> KafkaError | None:
        job = asyncio.wrap_future(self._threads.submit(work, *arguments))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            line.give_up()
            await asyncio.wait([job], timeout=FAREWELL)
            raise


class _Line:
    """A producer in one ownership of a slot. Its methods block, and are for threads, but for `give_up`. Errors are
    returned: an exception would remember the producer, which lives until it is forgotten."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self._producer: Any = None
        self._busy = threading.Lock()
        self._given_up = threading.Event()

    @property
    def is_over(self) -> bool:
        return self._given_up.is_set()

    def give_up(self) -> None:
        """Begin nothing any more, above all no commit."""
        self._given_up.set()

    def end(self) -> None:
        self.give_up()
        with self._busy:
            self._drop()

    def open(self, timeout: float) -> KafkaError | None:
        with self._busy:
            error = self._open(time.monotonic() + timeout)
            if error is not None or self.is_over:
                self._drop()
            return error

    def send(self, records: Sequence[Record], timeout: float) -> KafkaError | None:
        with self._busy:
            error = _gone() if self.is_over else self._transact(records, time.monotonic() + timeout)
            if self.is_over:
                self._drop()
            return error

    def _open(self, end: float) -> KafkaError | None:
        try:
            self._producer = Producer(dict(self._settings))
        except KafkaException as error:
            return error.args[0]
        return self._insist(self._producer.init_transactions, end)

    def _transact(self, records: Sequence[Record], end: float) -> KafkaError | None:
        reports: list[KafkaError] = []
        error = self._produce(records, reports) or self._flush(reports, end)
        if error is None or error.code() in PURGED:  # for another reason, with which the client refuses
            error = self._insist(self._producer.commit_transaction, end)
            if error is None:
                return None
            if not error.txn_requires_abort():  # it may be committed already
                self.give_up()
                return error
        failure = self._insist(self._producer.abort_transaction, end)
        self.give_up()  # the brokers would not accept the numbers that it gives to what comes next
        return failure if failure is not None and is_fenced(failure) else error

    def _produce(self, records: Sequence[Record], reports: list[KafkaError]) -> KafkaError | None:
        def on_delivery(error: KafkaError | None, _: object) -> None:
            if error is not None:
                reports.append(error)

        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(
                    record.topic, record.payload, record.key, on_delivery=on_delivery, headers=record.headers
                )
        except KafkaException as error:
            return error.args[0]
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        return None

    def _flush(self, reports: list[KafkaError], end: float) -> KafkaError | None:
        """Wait until the brokers have everything: what fails before the commit can surely be aborted."""
        while not reports:
            try:
                left = self._producer.flush(BLINK)
            except KafkaException as error:  # what is fatal is raised by any call
                return error.args[0]
            if self.is_over or time.monotonic() > end:
                return _gone()
            if not left:
                break
        return next((report for report in reports if report.code() not in PURGED), reports[0] if reports else None)

    def _insist(self, call: Callable[[float], None], end: float) -> KafkaError | None:
        """The client goes on with what it was doing when it is called again after a time-out."""
        while True:
            try:
                call(SLICE)
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
            else:
                return None
            if not error.retriable() or time.monotonic() > end or self._given_up.wait(BLINK):
                return error

    def _drop(self) -> None:
        """What was not sent is not sent any more, and what was sent is not committed any more."""
        self.give_up()
        producer, self._producer = self._producer, None
        if producer is None:
            return
        purge(producer)
        end = time.monotonic() + FAREWELL
        while len(producer) and time.monotonic() < end:  # the reports of what was purged
            with suppress(KafkaException):
                producer.poll(BLINK)


def _gone() -> KafkaError:
    return KafkaError(KafkaError._TIMED_OUT)
