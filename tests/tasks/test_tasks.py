"""What tasks do and when, seen from outside: over the memory store."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from postroom import ConfigurationError, Message, Outbox, Relay, TaskContext, Tasks
from postroom.stores.memory import MemoryStore
from tests.tasks.workshop import Email, Workshop
from tests.waiting import until

# --- running


async def test_a_task_runs_after_commit_with_its_payload_and_context(workshop: Workshop) -> None:
    @workshop.tasks.task("send_email", timeout=30)
    def send_email(payload: Email, context: TaskContext) -> None:
        workshop.done.append((payload, context))

    message = workshop.schedule(
        send_email, Email("anna@example.org", on=date(2030, 1, 2)), key="user-1", idempotency_key="welcome-1",
        headers={"tenant": "a"},
    )  # fmt: skip
    assert workshop.done == []
    report = await workshop.drain()
    assert (report.delivered, report.pending) == (1, 0)
    [(payload, context)] = workshop.done
    assert payload == Email("anna@example.org", on=date(2030, 1, 2))
    assert (context.task, context.message_id, context.key) == ("send_email", message.id, "user-1")
    assert (context.idempotency_key, context.attempt, context.headers) == ("welcome-1", 1, {"tenant": "a"})
    assert timedelta(0) < context.deadline - datetime.now(UTC) <= timedelta(seconds=30)


async def test_an_async_task_runs_on_the_loop_and_a_sync_one_in_a_thread(workshop: Workshop) -> None:
    @workshop.tasks.task("async")
    async def on_loop(payload: dict[str, int]) -> None:
        asyncio.get_running_loop()
        workshop.done.append(threading.current_thread() is threading.main_thread())

    @workshop.tasks.task("sync")
    def in_thread(payload: dict[str, int]) -> None:
        workshop.done.append(threading.current_thread() is not threading.main_thread())

    workshop.schedule(on_loop, {"n": 1})
    workshop.schedule(in_thread, {"n": 1})
    await workshop.drain()
    assert workshop.done == [True, True]


async def test_an_executor_of_ones_own_is_used(workshop: Workshop) -> None:
    with ThreadPoolExecutor(thread_name_prefix="mine") as executor:
        workshop.tasks.executor = executor

        @workshop.tasks.task("t")
        def t(payload: Any) -> None:
            workshop.done.append(threading.current_thread().name)
            if payload:
                raise ValueError("no")

        workshop.schedule(t, 0)
        workshop.schedule(t, 1)
        report = await workshop.drain()
    assert all(name.startswith("mine") for name in workshop.done)
    assert (report.delivered, report.dead) == (1, 1)


async def test_a_task_that_was_rolled_back_never_runs(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))

    def fail() -> None:
        with workshop.store.begin() as transaction:
            task.schedule(transaction, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (await workshop.drain()).delivered == 0
    assert workshop.done == []


async def test_messages_and_tasks_go_their_own_ways(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))
    workshop.schedule(task, 1, key="k")
    with workshop.store.begin() as transaction:
        workshop.outbox.add(transaction, "orders", {}, key="k")
    arrived: list[Message] = []
    assert (await workshop.relay({"*": arrived.append}).drain()).delivered == 2
    assert ([message.topic for message in arrived], workshop.done) == (["orders"], [1])


async def test_a_relay_without_tasks_leaves_them_to_others(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))
    workshop.schedule(task, 1)
    arrived: list[Message] = []
    report = await Relay(workshop.store, {"*": arrived.append}, outbox=workshop.outbox).drain()
    assert (report.delivered, report.pending, arrived) == (0, 1, [])
    assert (await workshop.drain()).delivered == 1


async def test_tasks_of_one_key_run_one_at_a_time_and_in_order_whatever_their_kind(workshop: Workshop) -> None:
    running: set[str] = set()

    def make(name: str, is_async: bool) -> Any:
        async def run_async(payload: int, context: TaskContext) -> None:
            begin(payload, context)
            await asyncio.sleep(0.001)
            end(context)

        def run(payload: int, context: TaskContext) -> None:
            begin(payload, context)
            end(context)

        return workshop.tasks.task(name)(run_async if is_async else run)

    def begin(payload: int, context: TaskContext) -> None:
        assert context.key not in running
        running.add(str(context.key))
        workshop.done.append((context.key, payload))

    def end(context: TaskContext) -> None:
        running.discard(str(context.key))

    one, other = make("one", True), make("other", False)
    for number in range(60):
        workshop.schedule(one if number % 2 else other, number, key=f"k{number % 3}")
    assert (await workshop.drain()).delivered == 60
    for key in ("k0", "k1", "k2"):
        numbers = [number for name, number in workshop.done if name == key]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("is_async", [True, False])
async def test_no_more_than_concurrency_run_at_once(workshop: Workshop, is_async: bool) -> None:
    release, arrived = threading.Event(), list[Message]()

    async def run_async(payload: int) -> None:
        workshop.done.append(payload)
        while not release.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def run(payload: int) -> None:
        workshop.done.append(payload)
        release.wait(30)

    task = workshop.tasks.task("t")(run_async if is_async else run)
    for number in range(20):
        workshop.schedule(task, number)
    async with workshop.relay({"*": arrived.append}, concurrency=3):
        await until(lambda: len(workshop.done) >= 3)
        for number in range(1, 4):  # the relay looks at everything again
            with workshop.store.begin() as transaction:
                workshop.outbox.add(transaction, "orders", number)
            await until(lambda number=number: len(arrived) == number)
        assert len(workshop.done) == 3
        release.set()
        await until(lambda: len(workshop.done) == 20)


async def test_a_slow_task_delays_only_its_key(workshop: Workshop) -> None:
    release = asyncio.Event()

    @workshop.tasks.task("slow")
    async def slow(payload: Any) -> None:
        await release.wait()
        workshop.done.append("slow")

    quick = workshop.tasks.task("quick")(lambda payload: workshop.done.append(payload))
    workshop.schedule(slow, key="a")
    workshop.schedule(quick, "behind", key="a")
    for number in range(50):
        workshop.schedule(quick, number, key=f"k{number}")
    async with workshop.relay(lease_ttl="0.3s", publish_timeout="0.05s"):
        await until(lambda: len(workshop.done) == 50)
        assert "behind" not in workshop.done
        await asyncio.sleep(1)  # longer than the lease, and than the time-out of a broker
        assert len(workshop.done) == 50
        release.set()
        await until(lambda: workshop.done[50:] == ["slow", "behind"])


async def test_a_task_that_is_due_later_runs_then_and_one_that_was_due_before_runs_now(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))
    workshop.schedule(task, "later", delay="1h")
    workshop.schedule(task, "at", at=datetime.now(UTC) + timedelta(hours=1))
    workshop.schedule(task, "past", at=datetime.now(UTC) - timedelta(hours=1))
    report = await workshop.drain()
    assert (report.delivered, report.pending, workshop.done) == (1, 2, ["past"])


async def test_what_is_scheduled_twice_with_one_idempotency_key_runs_once(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))
    for number in range(2):
        workshop.schedule(task, number, idempotency_key="once")
    await workshop.drain()
    assert workshop.done == [0]


async def test_many_can_be_scheduled_at_once(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))
    with workshop.store.begin() as transaction:
        workshop.outbox.add_many(transaction, [task.message(number, key="k") for number in range(10)])
    await workshop.drain()
    assert workshop.done == list(range(10))


def test_a_task_can_still_be_called(workshop: Workshop) -> None:
    @workshop.tasks.task("t")
    def double(payload: int) -> int:
        """Twice as much."""
        return 2 * payload

    assert double(4) == 8
    assert (double.__doc__, repr(double)) == ("Twice as much.", "<task 't'>")


async def test_many_more_than_a_batch_may_run_at_once(workshop: Workshop) -> None:
    everybody, here = asyncio.Event(), 0

    @workshop.tasks.task("t")
    async def meet(payload: Any) -> None:
        nonlocal here
        here += 1
        if here == 300:
            everybody.set()
        await everybody.wait()

    for _ in range(300):
        workshop.schedule(meet)
    async with asyncio.timeout(30):
        assert (await workshop.drain(concurrency=300, batch_size=20)).delivered == 300


# --- settings and routes that reach for them


async def test_tasks_know_the_outbox_that_their_relay_serves() -> None:
    store, tasks, done = MemoryStore(name="reports"), Tasks(Outbox("reports")), list[Any]()
    task = tasks.task("t")(lambda payload: done.append(payload))
    with store.begin() as transaction:
        task.schedule(transaction, 1)
    await Relay(store, tasks=tasks).drain()
    assert done == [1]
    with pytest.raises(ConfigurationError, match="the tasks are scheduled in"):
        Relay(store, tasks=tasks, outbox=Outbox())


async def test_of_tasks_each_is_done(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: workshop.done.append(payload))
    for number in range(5):
        workshop.schedule(task, number, key="k")
    await workshop.drain(latest_only=True)
    assert workshop.done == list(range(5))


async def test_tasks_are_not_copied(workshop: Workshop) -> None:
    outbox = Outbox(fan_out={"*": ["audit.{topic}"]})
    tasks = Tasks(outbox)
    with workshop.store.begin() as transaction:
        tasks.task("t")(lambda payload: None).schedule(transaction, "secret")
    assert (await workshop.store.left()).pending == 1


def test_tasks_cannot_be_routed(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="tasks cannot be routed"):
        workshop.relay({"postroom.tasks": lambda message: None})
