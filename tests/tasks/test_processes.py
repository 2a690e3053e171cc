"""Tasks in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from postroom import ConfigurationError, Relay, Report, Tasks
from postroom.ports import Entry
from postroom.stores.memory import MemoryStore
from tests.tasks import jobs
from tests.waiting import LONG, eventually, until


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def schedule(store: MemoryStore, task: Any, payload: Any, **options: Any) -> str:
    with store.begin() as transaction:
        return task.schedule(transaction, payload, **options).id


def relay_on(store: MemoryStore, **options: Any) -> Relay:
    return Relay(store, tasks=jobs.tasks, outbox=jobs.outbox, retry="never", **options)


async def drain(store: MemoryStore) -> Report:
    return await relay_on(store).drain()


async def entry_of(store: MemoryStore, id: str) -> Entry:
    entry = await store.entry(id)
    assert entry is not None
    return entry


async def test_a_task_runs_in_another_process_which_is_used_again(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ids = [schedule(store, jobs.pid, str(log), key="k") for _ in range(3)]
    schedule(store, jobs.pid_async, str(log), key="k")
    assert (await drain(store)).delivered == 4
    lines = log.read_text().splitlines()
    pids = {line.split()[0] for line in lines}
    assert len(pids) == 1
    assert pids != {str(os.getpid())}
    assert [line.split()[1:] for line in lines[:3]] == [["1", id] for id in ids]


async def test_a_stuck_task_is_really_ended(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    id = schedule(store, jobs.stuck, str(log), key="k")
    schedule(store, jobs.pid, str(log), key="other")
    report = await drain(store)
    assert (report.delivered, report.dead) == (1, 1)
    assert "no return within 500ms: its process was ended" in str((await entry_of(store, id)).error)
    assert "ends" not in log.read_text()


async def test_a_process_that_dies_is_a_failed_run_and_nobody_elses(store: MemoryStore, tmp_path: Path) -> None:
    id = schedule(store, jobs.dies, 7)
    schedule(store, jobs.pid, str(tmp_path / "log"))
    report = await drain(store)
    assert (report.delivered, report.dead) == (1, 1)
    entry = await entry_of(store, id)
    assert (entry.reason, "its process died with exit status 7" in str(entry.error)) == ("attempts", True)


async def test_an_error_that_cannot_be_sent_is_told_in_words(store: MemoryStore) -> None:
    id = schedule(store, jobs.fails, "you")
    assert (await drain(store)).dead == 1
    assert "Unpicklable: not you" in str((await entry_of(store, id)).error)


async def test_a_relay_that_stops_ends_what_is_not_done(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    schedule(store, jobs.hangs, str(log))
    async with relay_on(store, stop_timeout="10ms"):
        await until(lambda: log.exists() and log.read_text())
    assert not is_running(int(log.read_text()))


def test_a_process_does_not_outlive_its_relay(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import asyncio, sys; from tests.tasks import jobs; from postroom.stores.memory import MemoryStore; "
        "from postroom import Relay; store = MemoryStore()\n"
        "with store.begin() as transaction: jobs.hangs.schedule(transaction, sys.argv[1])\n"
        "asyncio.run(Relay(store, tasks=jobs.tasks, outbox=jobs.outbox).drain())"
    )
    relay = subprocess.Popen([sys.executable, "-c", program, str(log)], cwd=Path(__file__).parents[2])
    eventually(lambda: log.exists() and log.read_text())
    relay.kill()
    relay.wait(LONG)
    eventually(lambda: not is_running(int(log.read_text())))


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_what_no_other_process_finds_is_refused() -> None:
    tasks = Tasks(executor="process")
    with pytest.raises(ConfigurationError, match="must be at the top of a module"):
        tasks.task("t")(lambda payload: None)


def test_an_executor_is_one_or_a_process() -> None:
    with pytest.raises(ConfigurationError, match="neither an Executor nor 'process'"):
        Tasks().task("t", executor="threads")(jobs.say)  # type: ignore[arg-type]


def test_closing_ends_the_processes(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    schedule(store, jobs.pid, str(log))
    asyncio.run(drain(store))
    eventually(lambda: not is_running(int(log.read_text().split()[0])))


async def test_an_idle_process_that_is_gone_is_replaced(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with relay_on(store) as relay:
        for number in range(2):
            schedule(store, jobs.pid, str(log), key="k")
            await until(lambda number=number: log.exists() and len(log.read_text().splitlines()) == number + 1)
            await until(lambda: relay._session and not any(pump.in_flight for pump in relay._session.pumps))
            pid = int(log.read_text().splitlines()[-1].split()[0])
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: not is_running(pid))
    assert (await store.status()).counts["dead"] == 0


async def test_the_time_out_begins_when_the_function_does(store: MemoryStore, tmp_path: Path) -> None:
    """A new process imports for longer than this one may run."""
    assert jobs.brief.timeout is not None
    schedule(store, jobs.brief, str(tmp_path / "log"))
    assert (await drain(store)).delivered == 1


async def test_what_a_process_has_started_ends_with_it(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    schedule(store, jobs.starts_another, str(log))
    assert (await drain(store)).dead == 1
    eventually(lambda: not is_running(int(log.read_text())))
