"""A destination that keeps what it gets, and answers as a test says."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Self

from ..errors import DestinationUnavailable, MessageRejected, NotAttempted
from ..message import Message
from ..ports import Batch, Features

Failing = BaseException | type[BaseException]


@dataclass(slots=True, kw_only=True)
class RecordedMessage(Message):
    """A message as a test looks at it."""

    @classmethod
    def of(cls, message: Message) -> Self:
        return cls(**{field.name: getattr(message, field.name) for field in fields(Message)})

    def json(self) -> Any:
        """The payload, read as JSON."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Which messages: everything given must match. `topic` and `type` are globs."""

    topic: str | None = None
    type: str | None = None
    key: str | None = None

    def matches(self, message: Message) -> bool:
        return (
            (self.topic is None or fnmatchcase(message.topic, self.topic))
            and (self.type is None or (message.type is not None and fnmatchcase(message.type, self.type)))
            and (self.key is None or message.key == self.key)
        )

    def __str__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name}={value!r}" for name, value in given if value is not None)


@dataclass(slots=True)
class _Failure:
    left: int
    pattern: Pattern
    error: Failing


class Recorder:
    """A publisher that delivers into `messages`, in order, and fails when it was told to."""

    name = "recorder"
    features = Features(ordered=True)

    def __init__(self) -> None:
        self.messages: list[RecordedMessage] = []
        self._failures: list[_Failure] = []
        self._outage: Failing | None = None

    def fail_next(self, n: int, error: Failing | None, pattern: Pattern) -> None:
        """Answer the next n attempts to send a message that matches with the error."""
        self._failures.append(_Failure(n, pattern, error or MessageRejected("the test refused it")))

    def go_down(self, error: Failing | None = None) -> None:
        """Nothing gets through until `come_up`."""
        self._outage = error or DestinationUnavailable("the test took the destination down")

    def come_up(self) -> None:
        self._outage = None

    async def publish(self, batch: Batch) -> None:
        stopped: set[Hashable] = set()
        for message in batch.messages:
            lane = message.id if message.key is None else (message.topic, message.key)
            error = self._error_for(message, lane in stopped or not batch.may_start())
            if error is None:
                self.messages.append(RecordedMessage.of(message))
            else:
                stopped.add(lane)
            batch.answer(message, error)

    async def close(self) -> None:
        """What was delivered stays to be looked at."""

    def _error_for(self, message: Message, is_late: bool) -> BaseException | None:
        if is_late:
            return NotAttempted("a message before it in its key failed, or there was no time left")
        if self._outage is not None:
            return _made(self._outage)
        failure = next((each for each in self._failures if each.left > 0 and each.pattern.matches(message)), None)
        if failure is None:
            return None
        failure.left -= 1
        return _made(failure.error)


def _made(error: Failing) -> BaseException:
    return error() if isinstance(error, type) else error
