"""How long servers run: while a process uses them, or, started by hand, until they are stopped by hand."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.services import places
from tests.services.registry import SERVERS


@contextmanager
def in_use() -> Iterator[None]:
    """Servers run until the last process that is within leaves, unless they are kept."""
    places.ROOT.mkdir(exist_ok=True)
    # Every user shares this lock, so whoever gets it alone was the last. A process that was killed holds none.
    with open(places.ROOT / "users.lock", "w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            if not _kept().exists() and _gets_alone(users):
                stop()


def keep() -> None:
    """From now on servers run until `stop` is called by hand."""
    _kept().touch()


def stop() -> list[str]:
    """Stop the servers, whoever uses them, and return the names of those that ran."""
    _kept().unlink(missing_ok=True)
    return [name for name, server in reversed(SERVERS.items()) if server.stop()]


def _gets_alone(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kept() -> Path:
    return places.ROOT / "kept"
