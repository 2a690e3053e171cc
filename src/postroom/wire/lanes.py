"""Answers for a batch, such that of each key only a beginning is sent: what comes after a failure is not tried."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from ..errors import NotAttempted
from ..message import Message
from ..ports import Batch


class Lanes:
    """Stands between an adapter and its batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._failed: set[Hashable] = set()

    def open(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Those that may still be tried when it is their turn; the others are answered for."""
        for message in messages:
            if self._has_failed(message):
                self.answer(message, NotAttempted("a message before it in its key failed"))
            else:
                yield message

    def may_start(self, messages: Sequence[Message]) -> bool:
        """Whether there is time for them; if not, they are answered for."""
        if self._batch.may_start():
            return True
        for message in messages:
            self.answer(message, NotAttempted("there was no time left to start"))
        return False

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        if error is not None and message.key is not None:
            if self._has_failed(message):
                error = NotAttempted("a message before it in its key failed")
            self._failed.add((message.topic, message.key))
        self._batch.answer(message, error)

    def _has_failed(self, message: Message) -> bool:
        return bool(self._failed) and message.key is not None and (message.topic, message.key) in self._failed


def pieces(messages: Sequence[Message], most_bytes: int) -> Iterator[Sequence[Message]]:
    """In order, each with about as many bytes of payload as are sent and answered for together."""
    first = size = 0
    for index, message in enumerate(messages):
        size += len(message.payload or b"")
        if size >= most_bytes:
            yield messages[first : index + 1]
            first, size = index + 1, 0
    if first < len(messages):
        yield messages[first:]
