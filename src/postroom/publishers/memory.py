"""A destination in this process, for tests, trials and benchmarks: it keeps what it gets and fails when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ..errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from ..message import Message
from ..ports import Batch, Features
from ..redact import redact
from ..wire.options import split


class MemoryPublisher:
    """Delivers into `messages`; `count` is how many there were in all.

    `memory:?keep=1000` keeps only the newest 1000, `memory:?keep=0` none. `fail_with`, `reject` and `stall` make it
    fail, until `recover`.
    """

    features = Features(ordered=True)

    def __init__(self, url: str = "memory:") -> None:
        self.messages: list[Message] = []
        self.count = 0
        self._keep = _keep_of(url)
        self._outage: BaseException | None = None
        self._rules: list[tuple[Callable[[Message], bool], BaseException]] = []
        self._stalled = False

    def fail_with(self, error: BaseException | None = None) -> None:
        """From now on nothing gets through; every message is answered with the error (default: an outage)."""
        self._outage = error or DestinationUnavailable("the memory publisher was told to fail")

    def reject(self, predicate: Callable[[Message], bool], error: BaseException | None = None) -> None:
        """From now on messages for which the predicate is true are refused with the error; others get through."""
        self._rules.append((predicate, error or MessageRejected("the memory publisher was told to refuse it")))

    def stall(self) -> None:
        """From now on there is no answer at all."""
        self._stalled = True

    def recover(self) -> None:
        """All is well again."""
        self._outage = None
        self._rules.clear()
        self._stalled = False

    async def publish(self, batch: Batch) -> None:
        while self._stalled:  # noqa: ASYNC110 - `recover` may be called from any thread, an Event may not be set by one
            await asyncio.sleep(0.005)
        if not batch.may_start():
            _answer(batch, batch.messages, NotAttempted("there was no time left to start"))
        elif self._outage is not None:
            _answer(batch, batch.messages, self._outage)
        elif self._rules:
            self._take_by_rules(batch)
        else:
            self._keep_newest(batch.messages)
            batch.confirm_all()

    async def close(self) -> None:
        """Nothing to let go of: what was delivered stays to be looked at."""

    def _take_by_rules(self, batch: Batch) -> None:
        failed: set[tuple[str, str]] = set()
        for message in batch.messages:
            lane = None if message.key is None else (message.topic, message.key)
            if lane in failed:
                batch.answer(message, NotAttempted("a message before it in its key failed"))
            elif (error := self._refusal(message)) is None:
                self._keep_newest((message,))
                batch.answer(message)
            else:
                batch.answer(message, error)
                if lane is not None:
                    failed.add(lane)

    def _refusal(self, message: Message) -> BaseException | None:
        return next((error for predicate, error in self._rules if predicate(message)), None)

    def _keep_newest(self, messages: Sequence[Message]) -> None:
        self.count += len(messages)
        if self._keep != 0:
            self.messages.extend(messages)
        if self._keep and len(self.messages) > self._keep:
            del self.messages[: -self._keep]


def _answer(batch: Batch, messages: Iterable[Message], error: BaseException | None) -> None:
    answer = batch.answer
    for message in messages:
        answer(message, error)


def _keep_of(url: str) -> int | None:
    place, options = split(url, ["keep"])
    keep = options.get("keep")
    if place.strip("/") or not (keep is None or (keep.isascii() and keep.isdigit())):
        raise ConfigurationError(
            f"{redact(url)!r} does not name a memory publisher; write 'memory:' or 'memory:?keep=1000'"
        )
    return None if keep is None else int(keep)
