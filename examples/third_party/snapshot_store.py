"""A store in a package of its own: an outbox in one JSON file, for programs that are a single process.

A store from scratch is some forty methods with exact rules, a thousand lines. This one takes the rules from the store
in memory and adds what that lacks: after each change the whole state is written to a new file, which then replaces the
old one in one step, so a crash at any moment leaves the state before the change or the one after it.

`snapshot:/path/to/outbox.json` names it, once the package is installed: see pyproject.toml beside this file.
"""

from __future__ import annotations

import fcntl
import json
import os
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from postroom import ConfigurationError, StoreError, StoreUnavailable, TablesMissing
from postroom.clock import Clock
from postroom.stores import memory_read
from postroom.stores.memory import MemoryStore, MemoryTransaction
from postroom.stores.memory_rows import BreakerRow, Shelf
from postroom.stores.memory_tables import Tables


class SnapshotStore(MemoryStore):
    """While it is open its file is locked: another process that opens it is refused."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "default",
        prefix: str | None = None,
        schema: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name=name, clock=clock)
        scheme, _, path = url.partition(":")
        if scheme != "snapshot" or not path.strip("/"):
            raise ConfigurationError(f"{url!r} names no snapshot; write 'snapshot:/path/to/outbox.json'")
        self._path = Path(path)
        self._openings = 0
        self._lock_file: int | None = None

    # --- open and close

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        if self._openings == 0:
            self._take_file(create_tables)
        self._openings += 1
        await super().open(claim=claim, create_tables=create_tables)

    async def close(self) -> None:
        self._openings -= 1
        if self._openings == 0 and self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _take_file(self, create: bool) -> None:
        if not create and not self._path.exists():
            raise TablesMissing(f"there is no {self._path}; run 'postroom init'")
        self._lock_file = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_WRONLY)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock_file)
            self._lock_file = None
            raise StoreError(f"another process has {self._path} open: a snapshot is for one at a time") from error
        self._load() if self._path.exists() else self._save()

    @contextmanager
    def begin(self) -> Generator[MemoryTransaction]:
        if self._lock_file is None:
            raise StoreError(f"{self._path} is not open: await store.open() before you write to it")
        with super().begin() as transaction:
            yield transaction

    # --- every change is on the disk before anybody hears of it

    def _perform(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work.__module__ == memory_read.__name__:
            return super()._perform(work, *args, **kwargs)  # it only looks
        with self._saved_after():
            return super()._perform(work, *args, **kwargs)

    def _perform_and_ring(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._saved_after():
            return super()._perform_and_ring(work, *args, **kwargs)

    def _commit(self, writes: Any, inbox: Any) -> None:
        with self._saved_after():
            super()._commit(writes, inbox)

    @contextmanager
    def _saved_after(self) -> Generator[None]:
        with self._lock:
            yield
            try:
                self._save()
            except OSError as error:
                self._load()  # as if nothing had happened
                raise StoreUnavailable(f"{self._path} cannot be written: {error}") from error

    def _save(self) -> None:
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump({name: freeze(value) for name, value in vars(self.tables).items() if name != "_clock"}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def _load(self) -> None:
        state = json.loads(self._path.read_text(encoding="utf-8"))
        empty = Tables(self.tables._clock)
        for name, value in state.items():
            setattr(empty, name, thaw(value, getattr(empty, name)))
        vars(self.tables).update(vars(empty))  # in place: transactions that are under way know them


# --- Python objects as JSON: what JSON does not have is a list with its kind in front


def freeze(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return ["bytes", b64encode(value).decode()]
    if isinstance(value, datetime):
        return ["time", value.isoformat()]
    if isinstance(value, Shelf):
        return ["shelf", *(freeze(row) for row in sorted(value.rows.values(), key=lambda row: row.arrival))]
    if isinstance(value, dict):
        return ["dict", *([freeze(key), freeze(item)] for key, item in value.items())]
    if is_dataclass(value):
        return ["record", name_of(value), {field.name: freeze(getattr(value, field.name)) for field in fields(value)}]
    if isinstance(value, (tuple, list, set, frozenset)):
        return ["items", name_of(value), *(freeze(item) for item in value)]
    raise TypeError(f"a {type(value).__name__} has no place in a snapshot")


def thaw(value: Any, before: Any = None) -> Any:
    """What was frozen. `before` is what an empty store has in that place: it knows what it is made of."""
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "bytes":
        return b64decode(rest[0])
    if kind == "time":
        return datetime.fromisoformat(rest[0])
    if kind == "shelf":
        for row in rest:
            before.put(thaw(row))
        return before
    if kind == "dict":
        items = {thaw(key): thaw(item) for key, item in rest}
        return defaultdict(BreakerRow, items) if isinstance(before, defaultdict) else items
    made_of = class_named(rest[0])
    if kind == "record":
        return made_of(**{name: thaw(item) for name, item in rest[1].items()})
    items = [thaw(item) for item in rest[1:]]
    return made_of(*items) if hasattr(made_of, "_fields") else made_of(items)


def name_of(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def class_named(name: str) -> Any:
    """Postroom's own and Python's collections: a file must not decide what else is called."""
    module, _, kind = name.partition(":")
    if not module.startswith("postroom.") and name not in {
        f"builtins:{kind}" for kind in ("tuple", "list", "set", "frozenset")
    }:
        raise StoreError(f"{name} has no place in a snapshot")
    return getattr(import_module(module), kind)
