"""A relay process that dies at a chosen moment: `python victim.py DATABASE OUTPUT MOMENT` (-1: it lives)."""

from __future__ import annotations

import asyncio
import sys

from postroom import Message, MessageRejected, Relay
from postroom.publishers.stream import FilePublisher
from postroom.stores.sqlite import SqliteStore
from postroom.testing.faults import Faults


class Picky:
    """Writes to a file, but refuses what says so: once, or always."""

    def __init__(self, path: str) -> None:
        self._file = FilePublisher(f"file:{path}?fsync=false")  # the process dies, not the machine
        self.features = self._file.features

    async def publish(self, batch: object) -> None:
        await self._file.publish(_Sieve(batch))

    async def close(self) -> None:
        await self._file.close()


class _Sieve:
    def __init__(self, batch: object) -> None:
        self._batch = batch
        self.timeout = batch.timeout  # type: ignore[attr-defined]
        self.answer = batch.answer  # type: ignore[attr-defined]
        self.may_start = batch.may_start  # type: ignore[attr-defined]
        self.confirm_all = batch.confirm_all  # type: ignore[attr-defined]
        refused: set[tuple[str, str | None]] = set()
        self.messages: list[Message] = []
        for message in batch.messages:  # type: ignore[attr-defined]
            lane = (message.topic, message.key or message.id)
            if lane in refused or _is_refused(message):
                refused.add(lane)
                self.answer(message, MessageRejected("refused") if _is_refused(message) else _not_attempted())
            else:
                self.messages.append(message)


def _is_refused(message: Message) -> bool:
    return message.type == "always" or (message.type == "once" and message.attempt == 1)


def _not_attempted() -> Exception:
    from postroom import NotAttempted

    return NotAttempted("one before it was refused")


def main() -> None:
    database, output, moment = sys.argv[1:]
    faults = Faults(at=int(moment) if int(moment) >= 0 else None)
    relay = Relay(
        faults.store(SqliteStore(f"sqlite:///{database}")),
        faults.publisher(Picky(output)),
        lease_ttl="1s" if int(moment) >= 0 else "15s",  # its heir must wait that long
        batch_size=16,
        retry="immediate",
        on_dead={"orders": "block"},
    )
    asyncio.run(relay.drain())
    print(faults.moments)


if __name__ == "__main__":
    main()
