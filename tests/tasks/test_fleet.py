"""Several relays of which not all know every task."""

from __future__ import annotations

from typing import Any

from postroom import Block, Message, Outbox, Relay, TaskContext, Tasks, events
from postroom.stores.memory import MemoryStore
from tests.unit.relay_shop import Diary
from tests.waiting import until

FAST: dict[str, Any] = {"lease_ttl": "600ms", "publish_timeout": "50ms", "retry": "never"}


class Fleet:
    """A store, and relays of several versions of an application."""

    def __init__(self) -> None:
        self.store, self.outbox = MemoryStore(), Outbox()
        self.done: list[tuple[str, Any]] = []
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
            self.done.append((name, payload))

        return run

    def relay(self, tasks: Tasks | None, publishers: Any = None, **options: Any) -> Relay:
        return Relay(self.store, publishers, outbox=self.outbox, tasks=tasks, **FAST, **options)


async def test_a_task_that_is_unknown_here_goes_to_a_relay_that_knows_it() -> None:
    fleet = Fleet()
    blue, green = fleet.version("blue", "old"), fleet.version("green", "old", "new")
    async with fleet.relay(blue):
        for number in range(40):
            fleet.schedule("new", number, key=f"k{number}" if number % 2 else None)
            fleet.schedule("old", number, key=f"k{number}" if number % 2 else None)
        await until(lambda: len(fleet.done) >= 20)  # those that are behind no unknown one
        assert {name for name, _ in fleet.done} == {"blue"}
        async with fleet.relay(green):
            await until(lambda: len(fleet.done) == 80)
    assert sorted(number for name, number in fleet.done if name == "green")[:40:2]
    assert sorted(number for _, number in fleet.done) == sorted([*range(40), *range(40)])
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
            await until(lambda: len(fleet.done) == 40)


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


async def test_a_relay_that_knows_it_and_comes_in_time_runs_it_with_all_its_attempts() -> None:
    fleet = Fleet()
    fleet.schedule("new", 1, key="k")
    diary = Diary()
    async with fleet.relay(fleet.version("blue", "old"), observers=[diary]):
        await until(lambda: diary.of(events.Retried))
    async with fleet.relay(fleet.version("green", "new")):
        await until(lambda: fleet.done == [("green", 1)])
