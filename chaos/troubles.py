"""A destination that is down, or refuses messages, whenever the harness says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from postroom import DestinationUnavailable, Message, MessageRejected, NotAttempted
from postroom.ports import Batch, Features, Publisher

DOWN, REFUSING = "down", "refusing"


class Part:
    """Some messages of a batch."""

    def __init__(self, whole: Batch, messages: Sequence[Message]) -> None:
        self._whole = whole
        self.messages = messages
        self._open = {message.position: message for message in messages}

    @property
    def timeout(self) -> float:
        return self._whole.timeout

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        self._open.pop(message.position, None)
        self._whole.answer(message, error)

    def confirm_all(self) -> None:
        for message in list(self._open.values()):
            self.answer(message)

    def may_start(self) -> bool:
        return self._whole.may_start()


class Troubled:
    """Whoever publishes through this has the troubles that the switches tell of."""

    def __init__(self, publisher: Publisher, switches: Path) -> None:
        self._publisher = publisher
        self._down, self._refusing = switches / DOWN, switches / REFUSING
        self.name = "destination"

    @property
    def features(self) -> Features:
        return self._publisher.features

    async def publish(self, batch: Batch) -> None:
        if self._down.exists():
            raise DestinationUnavailable("it is down")
        taken = self._refuse(batch)
        if taken:
            await self._publisher.publish(Part(batch, taken))

    async def close(self) -> None:
        await self._publisher.close()

    def _refuse(self, batch: Batch) -> list[Message]:
        """Returns those that are not refused, nor behind one of their key that is."""
        is_refusing, closed = self._refusing.exists(), set[tuple[str, str | None]]()
        taken: list[Message] = []
        for message in batch.messages:
            lane = message.topic, message.key
            if message.key is not None and lane in closed:
                batch.answer(message, NotAttempted("one before it was refused"))
            elif message.type == "poison" or (is_refusing and message.type == "moody"):
                closed.add(lane)
                batch.answer(message, MessageRejected(f"it is {message.type}"))
            else:
                taken.append(message)
        return taken
