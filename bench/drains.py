"""How long it takes to empty a backlog: by the relay, and by the barest loop over the driver."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from postroom import Relay
from postroom.publishers.memory import MemoryPublisher

BATCH = 500
COLUMNS = (
    "position, slot, id, topic, key, type, payload, content_type, headers, sequence, generation, attempts, replays, "
    "created_at, expires_at"
)


def by_relay(path: Path, messages: int) -> float:
    """Messages per second of `Relay.drain`, start and stop included."""
    publisher = MemoryPublisher("memory:?keep=0")
    relay = Relay(f"sqlite:///{path}", publisher, batch_size=BATCH)
    start = time.perf_counter()
    report = asyncio.run(relay.drain())
    elapsed = time.perf_counter() - start
    if report.delivered != messages or report.pending:
        raise RuntimeError(f"the relay did not empty the backlog: {report}")
    return messages / elapsed


def by_raw_loop(path: Path, messages: int) -> float:
    """Messages per second of: select 500, delete them by id, commit. The same columns, the same durability."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    select = f"SELECT {COLUMNS} FROM postroom_outbox ORDER BY position LIMIT {BATCH}"
    seen = 0
    start = time.perf_counter()
    while rows := connection.execute(select).fetchall():
        marks = ",".join("?" * len(rows))
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"DELETE FROM postroom_outbox WHERE position IN ({marks})", [row[0] for row in rows])
        connection.execute("COMMIT")
        seen += len(rows)
    elapsed = time.perf_counter() - start
    connection.close()
    if seen != messages:
        raise RuntimeError(f"the raw loop saw {seen} of {messages}")
    return messages / elapsed
