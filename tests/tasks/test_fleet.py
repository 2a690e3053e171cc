"""Several relays of which not all know every task."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime
from itertools import count
from typing import Any

import pytest

from postroom import Block, Message, Outbox, Relay, TaskContext, Tasks, events
from postroom.message import slot_of
from postroom.stores.memory import MemoryStore
from tests.unit.relay_shop import Diary
from tests.waiting import until

QUICK: dict[str, Any] = {"lease_ttl": "2s", "publish_timeout": "500ms", "retry": "never"}
HASTY: dict[str, Any] = {"lease_ttl": "600ms", "publish_timeout": "50ms"}
"""For tests that let a lease run out."""


class Fleet:
    """A store, and relays of several versions of an application."""

    def __init__(self) -> None:
        self.store, self.outbox = MemoryStore(), Outbox()
        self.done: list[tuple[str, str, Any]] = []
        """By which version, task and payload; twice, should a lease be lost in between."""
        self.everything = Tasks(self.outbox)
        for id in ("old", "new"):
            self.everything.task(id)(lambda payload: None)

    def schedule(self, id: str, payload: Any, **options: Any) -> Message:
        with self.store.begin() as transaction:
            return self.everything[id].schedule(transaction, payload, **options)

    def version(self, name: str, *ids: str, unknown_after: str = "1h") -> Tasks:
        tasks = Tasks(self.outbox, unknown_after=unknown_after)
        for id in ids:
            tasks.task(id)(self._note(name))
        return tasks

    def _note(self, name: str) -> Any:
        def run(payload: Any, context: TaskContext) -> None:
            assert context.attempt == 1
            self.done.append((name, context.task, payload))

        return run

    def relay(self, tasks: Tasks | None, publishers: Any = None, **options: Any) -> Relay:
        return Relay(self.store, publishers, outbox=self.outbox, tasks=tasks, **{**QUICK, **options})


async def test_a_task_that_is_unknown_here_goes_to_a_relay_that_knows_it() -> None:
    fleet = Fleet()
    blue, green = fleet.version("blue", "old"), fleet.version("green", "old", "new")
    async with fleet.relay(blue):
        for number in range(40):
            fleet.schedule("new", number, key=f"k{number}" if number % 2 else None)
            fleet.schedule("old", number, key=f"k{number}" if number % 2 else None)
        await until(lambda: len(fleet.done) >= 20)  # those that are behind no unknown one
        assert {name for name, _, _ in fleet.done} == {"blue"}
        async with fleet.relay(green):
            await until(lambda: runs(fleet) == {(id, number) for id in ("old", "new") for number in range(40)})
    assert {name for name, task, _ in fleet.done if task == "new"} == {"green"}
    assert (await fleet.store.status()).counts["dead"] == 0


async def test_a_relay_that_runs_no_tasks_leaves_them_to_one_that_does() -> None:
    fleet = Fleet()
    arrived: list[Message] = []
    async with fleet.relay(None, arrived.append):
        for number in range(40):
            fleet.schedule("new", number, key=f"k{number}")
        with fleet.store.begin() as transaction:
            for number in range(40):
                fleet.outbox.add(transaction, "orders", number, key=f"k{number}")
        await until(lambda: len(arrived) == 40)
        assert fleet.done == []
        async with fleet.relay(fleet.version("green", "new"), lambda message: None):
            await until(lambda: runs(fleet) == {("new", number) for number in range(40)})


async def test_one_that_nobody_knows_waits_and_then_its_handler_decides() -> None:
    fleet = Fleet()
    blue = fleet.version("blue", "old", unknown_after="300ms")
    asked: list[str] = []

    @blue.unknown
    def unknown(message: Message, context: TaskContext, error: BaseException) -> Block:
        asked.append(f"{context.task} {context.attempt}")
        return Block()

    diary = Diary()
    message = fleet.schedule("new", 1, key="k")
    async with fleet.relay(blue, observers=[diary]):
        await until(lambda: diary.of(events.Died))
    entry = await fleet.store.entry(message.id)
    assert entry is not None
    assert (entry.state, entry.attempts, asked) == ("dead", 1, ["new 1"])
    assert diary.of(events.Retried), "it was given some time"


async def test_one_that_waits_is_not_said_to_have_failed(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    message = fleet.schedule("new", 1, key="k")
    async with fleet.relay(fleet.version("blue", "old")):
        await until(lambda: f"message {message.id}" in caplog.text)
    assert f"message {message.id} (postroom.tasks, key 'k') waits, next in 1 s" in caplog.text
    assert "failed" not in caplog.text


async def test_a_relay_that_knows_it_and_comes_in_time_runs_it_with_all_its_attempts() -> None:
    fleet = Fleet()
    fleet.schedule("new", 1, key="k")
    diary = Diary()
    async with fleet.relay(fleet.version("blue", "old"), observers=[diary]):
        await until(lambda: diary.of(events.Retried))
    async with fleet.relay(fleet.version("green", "new")):
        await until(lambda: fleet.done == [("green", "new", 1)])


async def test_one_relay_for_messages_and_one_for_tasks_leave_nothing_behind() -> None:
    fleet = Fleet()
    arrived: list[Message] = []
    async with fleet.relay(None, arrived.append), fleet.relay(fleet.version("green", "new")):
        await until(lambda: len(owners(fleet)) == 2)
        for number in range(100):
            fleet.schedule("new", number, key=f"k{number}")
            with fleet.store.begin() as transaction:
                fleet.outbox.add(transaction, "orders", number, key=f"k{number}")
        await until(lambda: len({message.id for message in arrived}) == len(runs(fleet)) == 100)


def slow_and_quick(fleet: Fleet, release: threading.Event, running: list[Any]) -> Tasks:
    tasks = fleet.version("blue", "old")

    @tasks.task("slow")
    def slow(payload: Any) -> None:
        running.append(payload)
        release.wait(120)
        running.remove(payload)

    return tasks


def key_in(slot: int, name: str) -> str:
    """A key of that slot."""
    return next(key for number in count() if slot_of(key := f"{name}-{number}", "") == slot)


async def test_slots_that_are_to_move_go_on_while_tasks_are_under_way_there() -> None:
    fleet, release, running = Fleet(), threading.Event(), list[Any]()
    blue, green = (slow_and_quick(fleet, release, running) for _ in range(2))
    fleet.everything.task("slow")(lambda payload: None)
    async with fleet.relay(blue, concurrency=100):
        for slot in range(64):
            fleet.schedule("slow", slot, key=key_in(slot, "slow"))
        await until(lambda: len(running) == 64)
        async with fleet.relay(green):
            await until(lambda: len(fleet.store.tables.relays) == 2)
            for _ in range(3):  # each relay has seen the other, and given back what it would
                seen = beats(fleet)
                await until(lambda seen=seen: all(beats(fleet)[relay] > at for relay, at in seen.items()))
            try:
                for _ in range(3):
                    fleet.done.clear()
                    for slot in range(64):
                        fleet.schedule("old", slot, key=key_in(slot, "quick"))
                    await until(lambda: len(runs(fleet)) == 64)
            finally:
                release.set()
            await until(lambda: not running)
            await until(lambda: len(owners(fleet)) == 2)


async def test_a_relay_that_stops_keeps_the_lease_of_a_task_that_it_cannot_end() -> None:
    fleet, release, running = Fleet(), threading.Event(), list[Any]()
    blue = slow_and_quick(fleet, release, running)
    other = slow_and_quick(fleet, release, running)
    fleet.everything.task("slow")(lambda payload: None)
    fleet.schedule("slow", 1, key="k")
    first = fleet.relay(blue, stop_timeout="10ms", **HASTY)
    task = asyncio.create_task(first.run())
    await until(lambda: running == [1])
    first.stop()
    async with fleet.relay(other, **HASTY):
        await asyncio.sleep(1.5)  # more than twice the lease
        assert running == [1]
        assert not task.done()
        release.set()
        await asyncio.wait_for(task, 30)
    assert (await fleet.store.left()).pending == 0


async def test_a_drain_that_is_over_its_time_keeps_the_lease_of_a_task_that_it_cannot_end() -> None:
    fleet, release, running = Fleet(), threading.Event(), list[Any]()
    blue, other = (slow_and_quick(fleet, release, running) for _ in range(2))
    fleet.everything.task("slow")(lambda payload: None)
    fleet.schedule("slow", 1, key="k")
    drain = asyncio.create_task(fleet.relay(blue, stop_timeout="1s", **HASTY).drain(timeout="100ms"))
    await until(lambda: running == [1])
    async with fleet.relay(other, **HASTY):
        await asyncio.sleep(1.5)
        assert running == [1]
        release.set()
        await asyncio.wait_for(drain, 30)


async def test_losing_the_database_is_no_crash_of_the_task() -> None:
    """Its lease is lost, so it is cancelled and begins again; the process lives."""
    fleet = Fleet()
    tasks, attempts = Tasks(fleet.outbox), list[int]()
    release = asyncio.Event()

    @tasks.task("new")
    async def new(payload: Any, context: TaskContext) -> None:
        attempts.append(context.attempt)
        await release.wait()

    fleet.schedule("new", 1, key="k")
    relay = fleet.relay(tasks)
    async with relay:
        for number in range(1, 5):
            await until(lambda number=number: len(attempts) == number)
            session = relay._session
            assert session is not None
            session._keeper_or_fail().lose_all()
            await fleet.store.release(relay.id, owned_epochs(fleet), {}, False)
        release.set()
        await until(lambda: len(attempts) == 5)
    assert attempts == [1] * 5
    assert (await fleet.store.status()).counts["dead"] == 0


def runs(fleet: Fleet) -> set[tuple[str, Any]]:
    return {(task, payload) for _, task, payload in fleet.done}


def owners(fleet: Fleet) -> set[str]:
    return {lease.owner for lease in fleet.store.tables.leases.values() if lease.owner is not None}


def beats(fleet: Fleet) -> dict[str, datetime]:
    """When each relay last gave a sign of life."""
    return {name: relay.seen_at for name, relay in fleet.store.tables.relays.items()}


def owned_epochs(fleet: Fleet) -> dict[int, int]:
    return {slot: lease.epoch for slot, lease in fleet.store.tables.leases.items()}
