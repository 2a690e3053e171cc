"""A batch that remembers what a publisher did with it, and a stand-in for the relay that hands it over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable

from ..errors import NoAnswer
from ..message import Message
from ..ports import Publisher
from ..settings import grace


class RecordingBatch:
    """A `Batch` for tests of publishers.

    `answers` holds the answer to each message by id, in the order they came. `may_start` is True until `stop_starting`,
    or for as many questions as `starts` says. An answer that breaks the contract does not count and is written down in
    `violations`: a second one, one for a stranger, one after the call, one from another thread.
    """

    def __init__(self, messages: Iterable[Message], timeout: float = 5.0, *, starts: int | None = None) -> None:
        self.messages = list(messages)
        self.timeout = timeout
        self.answers: dict[str, BaseException | None] = {}
        self.violations: list[str] = []
        self.over = False
        self.asked = 0
        self.went_on = time.monotonic()
        """When something was last answered, or allowed to start."""
        self._starts = starts
        self._ids = {message.id for message in self.messages}
        self._thread = threading.get_ident()

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        if complaint := self._complaint(message):
            # Not raised: an error could stop a publisher that would otherwise do worse.
            self.violations.append(f"{message.id} was answered {complaint}: {error!r}")
        else:
            self.answers[message.id] = error
            self.went_on = time.monotonic()

    def confirm_all(self) -> None:
        for message in self.unanswered:
            self.answer(message)

    def may_start(self) -> bool:
        self.asked += 1
        may = self._starts is None or self.asked <= self._starts
        if may:
            self.went_on = time.monotonic()
        return may

    def stop_starting(self) -> None:
        self._starts = 0

    @property
    def delivered(self) -> list[Message]:
        """In the order of the batch, as are the next two."""
        return [message for message in self.messages if self.answers.get(message.id, message) is None]

    @property
    def failed(self) -> list[Message]:
        return [message for message in self.messages if self.answers.get(message.id) is not None]

    @property
    def unanswered(self) -> list[Message]:
        return [message for message in self.messages if message.id not in self.answers]

    def error_of(self, message: Message) -> BaseException | None:
        """What the message was answered with; KeyError if it was not."""
        return self.answers[message.id]

    def _complaint(self, message: Message) -> str | None:
        if message.id not in self._ids:
            return "but is not in the batch"
        if message.id in self.answers:
            return "twice"
        if self.over:
            return "after the call was over"
        return "from another thread" if threading.get_ident() != self._thread else None


async def hand_over(publisher: Publisher, batch: RecordingBatch) -> RecordingBatch:
    """Call `publish` as a relay does: cancel it when no answer has come for the batch's time-out, and nothing could
    start, and let what it raises, or that it returned, answer for the rest."""
    call = asyncio.ensure_future(publisher.publish(batch))
    try:
        error = await _watch(call, batch)
    finally:
        call.cancel()
        batch.over = True
    for message in batch.unanswered:
        batch.answers[message.id] = error
    return batch


async def _watch(call: asyncio.Future[None], batch: RecordingBatch) -> BaseException:
    batch.went_on = time.monotonic()
    while (left := batch.went_on + batch.timeout + grace(batch.timeout) - time.monotonic()) > 0:
        await asyncio.wait([call], timeout=left)
        if call.done():
            return call.exception() or NoAnswer("the publisher returned without an answer for it")
    call.cancel()
    await asyncio.wait([call], timeout=batch.timeout + 5)
    assert call.done(), "publish goes on although it was cancelled"
    return TimeoutError(f"no answer within {batch.timeout} s")
