"""A task that ends the process it runs in, among good ones, in real processes on each database."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from postroom import Desk, Message, Outbox
from postroom.message import TASKS_TOPIC

WORKER = Path(__file__).with_name("worker.py")
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
SERVERS = {"postgresql": "postgresql-15", "mysql": "mariadb"}
GOOD = 100


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    empty_database: Callable[[str], str] = request.getfixturevalue("empty_database")
    return empty_database(SERVERS[request.param])


def schedule(store: str, messages: list[Message]) -> None:
    outbox, url = Outbox(), make_url(store)
    engine = create_engine(url.set(drivername=DRIVERS[url.drivername]))
    outbox.create_tables(engine)
    with engine.begin() as connection:
        outbox.add_many(connection, messages)
    engine.dispose()


def task(kind: str, payload: int, key: str | None) -> Message:
    return Message(topic=TASKS_TOPIC, type=kind, payload=payload, key=key)


def run(store: str, log: Path) -> int:
    process = subprocess.run(
        [sys.executable, str(WORKER), store, str(log)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode in (0, 7), process.stderr
    return process.returncode


def deaths(store: str, log: Path) -> int:
    """Processes that died until everything was done. One that meets a lease of the last may end before it can begin."""
    endings = [run(store, log)]
    while endings[-1] or asyncio.run(pending(store)):
        endings.append(run(store, log))
        assert len(endings) < 20, endings
    return endings.count(7)


async def pending(store: str) -> int:
    async with Desk(store) as desk:
        counts = (await desk.status()).counts
    return counts["pending"] + counts["failed"]


def test_a_task_that_ends_the_process_is_found_out_and_the_rest_is_done(store: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    messages = [
        task("good.async" if number % 2 else "good", number, f"key-{number % 7}" if number % 3 else None)
        for number in range(GOOD)
    ]
    culprit = task("bad", 0, "bad")
    schedule(store, [*messages[:40], culprit, *messages[40:]])
    assert deaths(store, log) == 3
    said = log.read_text().split("\n")[:-1]
    assert [line for line in said if line.startswith("bad")] == ["bad 1", "bad 2", "bad 3"]
    done = Counter(int(line) for line in said if not line.startswith("bad"))
    assert sorted(done) == list(range(GOOD))
    assert sum(done.values()) - GOOD <= 3 * 8, "only what was under way is done again"
    asyncio.run(check_that_it_is_said(store, culprit))


async def check_that_it_is_said(store: str, culprit: Message) -> None:
    async with Desk(store) as desk:
        status = await desk.status()
        entry = await desk.show(culprit.id)
    assert (status.counts["dead"], status.counts["pending"]) == (1, 0)
    assert status.reasons == {"quarantined": 1}
    assert (entry.state, entry.reason) == ("dead", "quarantined")
    assert "it was under way 3 times when a process died or lost its lease" in str(entry.error)


def test_one_that_is_revived_gets_another_chance(store: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    culprit = task("bad", 0, "bad")
    schedule(store, [culprit])
    assert deaths(store, log) == 3
    asyncio.run(revive(store, culprit))
    assert deaths(store, log) == 3


async def revive(store: str, culprit: Message) -> None:
    async with Desk(store) as desk:
        assert await desk.revive(culprit.id) == 1
