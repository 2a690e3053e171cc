"""Backlogs to measure with: a SQLite file with undelivered messages, copied for every round."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from postroom import Message, Outbox

CHUNK = 5_000


def make_backlog(folder: Path, name: str, *, messages: int, keys: int, payload: int) -> Path:
    """A database with that many messages, written through `add_many` as an application would."""
    path = folder / f"{name}.db"
    outbox = Outbox()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    body = b"x" * payload
    for start in range(0, messages, CHUNK):
        numbers = range(start, min(start + CHUNK, messages))
        outbox.add_many(connection, [Message(topic="orders", payload=body, key=f"key-{n % keys}") for n in numbers])
        connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def copy_of(backlog: Path, name: str) -> Path:
    path = backlog.with_name(f"{name}.db")
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    shutil.copyfile(backlog, path)
    return path
