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
        self._failed: dict[Hashable, int] = {}
        """Of each key that failed, the place in the batch of the first that did."""
        self._places: dict[int, int] | None = None

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
            else:
                self._failed[(message.topic, message.key)] = self._place(message)
        self._batch.answer(message, error)

    def confirm_all(self, count: int) -> bool:
        """If these are all there are: answer for them at once, which takes less time."""
        if count < len(self._batch.messages):
            return False
        self._batch.confirm_all()
        return True

    def _has_failed(self, message: Message) -> bool:
        """Whether one before it did: one behind it says nothing about it, though that may have been refused earlier."""
        if not self._failed or message.key is None:
            return False
        first = self._failed.get((message.topic, message.key))
        return first is not None and first < self._place(message)

    def _place(self, message: Message) -> int:
        if self._places is None:
            self._places = {id(each): place for place, each in enumerate(self._batch.messages)}
        return self._places[id(message)]


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
