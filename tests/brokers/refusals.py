"""The contract of refusals, for brokers that refuse what is too large."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from postroom import Message
from postroom.testing.publisher_contract import RejectionContract


class RefusesWhatIsLarge(RejectionContract):
    large = 2_000
    """Bytes."""

    def messages(self, *arguments: Any, **fields: Any) -> list[Message]:
        self._made = super().messages(*arguments, **fields)
        return self._made

    async def reject(self, ids: Collection[str]) -> None:
        for message in self._made:
            if message.id in ids:
                message.payload = b"x" * self.large

    async def mend_destination(self) -> None:
        for message in self._made:
            message.payload = b"x"
