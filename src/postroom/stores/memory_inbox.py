"""What inboxes remember in a memory store, seen from within one transaction."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ..errors import NoTransactionError, StoreError

Name = tuple[str, ...]


class Recollection:
    """Others see what is noted here once it is kept.

    Nobody waits for anybody. If somebody else has meanwhile changed what was looked up here, `keep` raises, and the
    transaction is rolled back: what a message did is not done twice.
    """

    def __init__(self, kept: dict[Name, Any], now: Callable[[], datetime]) -> None:
        self.now = now
        self._kept = kept
        self._noted: ChainMap[Name, Any] = ChainMap()
        self._looked_up: dict[Name, Any] = {}
        self._over = False

    def recall(self, name: Name) -> Any:
        if self._over:
            raise NoTransactionError(f"{name[-1]!r} came too late: its transaction is over")
        if name in self._noted:
            return self._noted[name]
        return self._looked_up.setdefault(name, self._kept.get(name))

    def note(self, name: Name, value: Any) -> None:
        """Remember it, or forget it if it is None."""
        self._noted[name] = value

    def noted(self, *beginning: str) -> list[tuple[Name, Any]]:
        known = {**self._kept, **self._noted}.items()
        return [(name, value) for name, value in known if value is not None and name[: len(beginning)] == beginning]

    @contextmanager
    def savepoint(self) -> Generator[None]:
        outer = self._noted
        self._noted = outer.new_child()
        try:
            yield
            outer.update(self._noted.maps[0])
        finally:
            self._noted = outer

    def finish(self) -> None:
        self._over = True

    def keep(self) -> None:
        """Only one thread at a time."""
        overtaken = [name for name, value in self._looked_up.items() if self._kept.get(name) != value]
        if overtaken:
            raise StoreError(
                f"another transaction has handled {overtaken[0][-1]!r} meanwhile: this one was rolled back; try again"
            )
        for name, value in self._noted.items():
            if value is None:
                self._kept.pop(name, None)
            else:
                self._kept[name] = value
