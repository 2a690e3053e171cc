"""What tasks do and when, seen from outside: over the memory store."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from postroom import (
    Block,
    ConfigurationError,
    DestinationUnavailable,
    Fixed,
    Ignore,
    Message,
    Outbox,
    Relay,
    Retry,
    SerializationError,
    TaskContext,
    Tasks,
)
from postroom.ports import Query
from postroom.stores.memory import MemoryStore
from tests.tasks.workshop import Workshop
from tests.waiting import until


@dataclass
class Email:
    to: str
    subject: str = "Hello"
    on: date | None = None


class Model(BaseModel):
    amount: Decimal
    tags: list[str] = []


class Parcel(TypedDict):
    weight: int
    to: str


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


# --- payloads


@pytest.mark.parametrize(
    ("annotation", "given", "got"),
    [
        (Email, Email("a"), Email("a")),
        (Model, Model(amount=Decimal("1.10")), Model(amount=Decimal("1.10"))),
        (Parcel, {"weight": 1, "to": "x"}, {"weight": 1, "to": "x"}),
        (list[Email], [Email("a")], [Email("a")]),
        (dict, {"a": [1]}, {"a": [1]}),
        (list, [1], [1]),
        (str, "ü", "ü"),
        (int, 1, 1),
        (float, 1, 1),
        (bool, True, True),
        (None, None, None),
        (Any, [None], [None]),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (int | None, None, None),
    ],
)
async def test_the_payload_is_what_the_annotation_says(
    workshop: Workshop, annotation: Any, given: Any, got: Any
) -> None:
    def run(payload: Any) -> None:
        workshop.done.append(payload)

    run.__annotations__["payload"] = annotation
    workshop.schedule(workshop.tasks.task("t")(run), given)
    await workshop.drain()
    assert workshop.done == [got]


@pytest.mark.parametrize(
    ("annotation", "given", "words"),
    [
        (Email, {"subject": "x"}, "the payload is no Email: to: Field required"),
        (Model, {"amount": "x"}, "amount: Input should be a valid decimal"),
        (Parcel, {"weight": "heavy", "to": ""}, "weight: Input should be a valid integer"),
        (int, True, "the payload is a bool, and should be int"),
        (dict, [], "the payload is a list, and should be dict"),
        (Any, b"{", "the payload is no JSON"),
    ],
)
async def test_a_payload_that_does_not_validate_is_held_with_the_reason(
    workshop: Workshop, annotation: Any, given: Any, words: str
) -> None:
    def run(payload: Any) -> None:
        workshop.done.append(payload)

    run.__annotations__["payload"] = annotation
    task = workshop.tasks.task("t", retry=Fixed("1s"))(run)
    message = workshop.schedule(task, given, key="k")
    report = await workshop.drain()
    entry = await workshop.store.entry(message.id)
    assert (report.dead, report.held, workshop.done) == (1, 1, [])
    assert entry is not None
    assert entry.reason == "blocked"
    assert words in str(entry.error)


async def test_a_secret_in_a_payload_is_not_in_the_error(workshop: Workshop) -> None:
    @workshop.tasks.task("t")
    def run(payload: Parcel) -> None: ...

    message = workshop.schedule(run, {"weight": "hunter2", "to": ""})
    await workshop.drain()
    entry = await workshop.store.entry(message.id)
    assert entry is not None
    assert "hunter2" not in str(entry.error)


def test_a_payload_that_cannot_be_written_is_refused_at_once(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: None)
    with pytest.raises(SerializationError):
        workshop.schedule(task, object())


# --- failing


async def test_without_a_policy_of_its_own_the_relays_decides(workshop: Workshop) -> None:
    @workshop.tasks.task("t")
    def fail(payload: Any, context: TaskContext) -> None:
        workshop.done.append(context.attempt)
        raise ConnectionError("the mail server is down")

    message = workshop.schedule(fail, key="k")
    report = await workshop.drain(retry="steps 0s 0s")
    entry = await workshop.store.entry(message.id)
    assert workshop.done == [1, 2, 3]
    assert (report.retried, report.dead, report.held) == (2, 1, 1)
    assert entry is not None
    assert (entry.reason, entry.attempts) == ("attempts", 3)
    assert "the mail server is down" in str(entry.error)


async def test_a_policy_of_its_own_goes_before_the_relays(workshop: Workshop) -> None:
    @workshop.tasks.task("t", retry=Fixed("0s", max_attempts=4))
    def fail(payload: Any, context: TaskContext) -> None:
        workshop.done.append(context.attempt)
        raise ValueError("no")

    workshop.schedule(fail, key="k")
    report = await workshop.drain()
    assert (workshop.done, report.dead) == ([1, 2, 3, 4], 1)


async def test_many_failing_tasks_stop_nobody_else(workshop: Workshop) -> None:
    """As a destination they would be unavailable by now."""

    @workshop.tasks.task("bad")
    def bad(payload: Any) -> None:
        raise DestinationUnavailable("down")

    good = workshop.tasks.task("good")(lambda payload: workshop.done.append(payload))
    for number in range(30):
        workshop.schedule(bad, key=f"bad-{number}")
    workshop.schedule(good, 1, key="good")
    report = await workshop.drain()
    assert (report.dead, report.delivered, workshop.done) == (30, 1, [1])


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("decision", "delivered", "dead", "pending"),
    [
        (Ignore(), 1, 0, 0),
        (Block(), 0, 1, 0),
        (Retry(delay="1h"), 0, 0, 1),
        (Retry(at=datetime(2100, 1, 1, tzinfo=UTC)), 0, 0, 1),
        (None, 0, 1, 0),
    ],
)
async def test_on_failure_decides(
    workshop: Workshop, is_async: bool, decision: Any, delivered: int, dead: int, pending: int
) -> None:
    def decide(payload: Any, context: TaskContext, error: BaseException) -> Any:
        workshop.done.append((payload, context.attempt, str(error)))
        return decision

    async def decide_async(payload: Any, context: TaskContext, error: BaseException) -> Any:
        return decide(payload, context, error)

    @workshop.tasks.task("t", on_failure=decide_async if is_async else decide)
    def fail(payload: Any) -> None:
        raise ValueError("no")

    message = workshop.schedule(fail, 7, key="k")
    report = await workshop.drain()
    assert workshop.done == [(7, 1, "no")]
    assert (report.delivered, report.dead, report.pending) == (delivered, dead, pending)
    if decision == Retry(delay="1h"):
        [hold] = await workshop.store.holds()
        assert hold.message_id == message.id
        assert 3500 < (hold.due_in or 0) <= 3600


async def test_a_retry_now_runs_again_until_it_is_done(workshop: Workshop) -> None:
    @workshop.tasks.task("t", on_failure=lambda payload, context, error: Retry())
    def fail(payload: Any, context: TaskContext) -> None:
        workshop.done.append(context.attempt)
        if context.attempt < 7:
            raise ValueError("no")

    workshop.schedule(fail, key="k")
    report = await workshop.drain()
    assert (workshop.done, report.delivered, report.retried) == ([1, 2, 3, 4, 5, 6, 7], 1, 6)


async def test_a_handler_that_fails_leaves_it_to_the_policy(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(payload: Any, context: TaskContext, error: BaseException) -> Any:
        raise RuntimeError("I do not know")

    @workshop.tasks.task("t", on_failure=decide)
    def fail(payload: Any) -> None:
        raise ValueError("no")

    message = workshop.schedule(fail)
    assert (await workshop.drain()).dead == 1
    assert f"[t {message.id}] the handler of its failure failed itself" in caplog.text
    assert "I do not know" in caplog.text


async def test_a_blocked_task_lets_others_of_its_key_go_on_if_the_setting_says_so(workshop: Workshop) -> None:
    @workshop.tasks.task("t", on_failure=lambda payload, context, error: Block())
    def run(payload: int) -> None:
        if payload == 0:
            raise ValueError("no")
        workshop.done.append(payload)

    for number in range(3):
        workshop.schedule(run, number, key="k")
    report = await workshop.drain(on_dead={"t": "continue"})
    assert (report.dead, report.held, workshop.done) == (1, 0, [1, 2])


async def test_a_blocked_task_holds_its_key_by_default(workshop: Workshop) -> None:
    @workshop.tasks.task("t", on_failure=lambda payload, context, error: Block())
    def run(payload: int) -> None:
        if payload == 0:
            raise ValueError("no")
        workshop.done.append(payload)

    for number in range(3):
        workshop.schedule(run, number, key="k")
    report = await workshop.drain()
    assert (report.dead, report.held, report.pending, workshop.done) == (1, 1, 2, [])


async def test_a_coroutine_that_a_sync_function_returns_is_an_error(workshop: Workshop) -> None:
    async def work() -> None:
        workshop.done.append("worked")

    message = workshop.schedule(workshop.tasks.task("t")(lambda payload: work()))
    assert (await workshop.drain()).dead == 1
    entry = await workshop.store.entry(message.id)
    assert entry is not None
    assert "make it `async def`" in str(entry.error)
    assert workshop.done == []


async def test_an_unknown_task_blocks_unless_a_handler_says_otherwise(workshop: Workshop) -> None:
    workshop.tasks.unknown_after = 0
    elsewhere = Tasks(workshop.outbox)
    message = workshop.schedule(elsewhere.task("gone")(lambda payload: None), key="k")
    report = await workshop.drain()
    assert (report.dead, report.held) == (1, 1)
    entry = await workshop.store.entry(message.id)
    assert entry is not None
    assert "no task 'gone' is registered in this relay" in str(entry.error)

    @workshop.tasks.unknown
    def ignore(message: Message, context: TaskContext, error: BaseException) -> Any:
        workshop.done.append(message.type)
        return Ignore()

    await workshop.store.revive([message.id])
    assert (await workshop.drain()).delivered == 1
    assert workshop.done == ["gone"]


async def test_an_unreadable_payload_may_have_a_handler(workshop: Workshop) -> None:
    @workshop.tasks.unreadable
    async def ignore(message: Message, context: TaskContext, error: BaseException) -> Any:
        workshop.done.append(str(error))
        return Ignore()

    @workshop.tasks.task("t")
    def run(payload: int) -> None: ...

    workshop.schedule(run, "x")
    assert (await workshop.drain()).delivered == 1
    assert workshop.done == ["the payload is a str, and should be int"]


# --- time


async def test_an_async_task_that_is_stuck_is_cancelled_and_waited_for(workshop: Workshop) -> None:
    @workshop.tasks.task("t", timeout="50ms")
    async def stuck(payload: Any, context: TaskContext) -> None:
        workshop.done.append("begins")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            workshop.done.append("ends")

    message = workshop.schedule(stuck, key="k")
    await workshop.drain(retry="steps 0s")
    assert workshop.done == ["begins", "ends", "begins", "ends"]
    entry = await workshop.store.entry(message.id)
    assert entry is not None
    assert "no return within 50ms" in str(entry.error)


async def test_a_sync_task_that_is_stuck_keeps_its_key_until_it_returns(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @workshop.tasks.task("t", timeout="20ms")
    def stuck(payload: int) -> None:
        workshop.done.append(payload)
        if payload == 0:
            release.wait(30)

    for number in range(2):
        workshop.schedule(stuck, number, key="k")
    with caplog.at_level(logging.WARNING, "postroom.tasks"):
        async with workshop.relay():
            await until(lambda: "still running, though its time-out of 20ms is over" in caplog.text)
            assert workshop.done == [0]
            release.set()
            await until(lambda: workshop.done == [0, 1])
    status = await workshop.store.status()
    assert status.counts["pending"] == 0


async def test_a_relay_that_stops_cancels_what_is_not_done_in_time_and_it_runs_again(workshop: Workshop) -> None:
    @workshop.tasks.task("t")
    async def slow(payload: Any, context: TaskContext) -> None:
        workshop.done.append(("begins", context.attempt))
        if len(workshop.done) == 1:
            try:
                await asyncio.sleep(60)
            finally:
                workshop.done.append("cancelled")

    workshop.schedule(slow, key="k")
    async with workshop.relay(stop_timeout="10ms"):
        await until(lambda: workshop.done)
    assert workshop.done == [("begins", 1), "cancelled"]
    assert (await workshop.drain(lease_ttl="1s")).delivered == 1
    assert workshop.done[2:] == [("begins", 1)]


# --- bad input


def no_payload() -> None: ...
def too_many(payload: Any, context: Any, more: Any) -> None: ...
def keyword(payload: Any, *, more: Any) -> None: ...
def generator(payload: Any) -> Any:
    yield payload


async def async_generator(payload: Any) -> Any:
    yield payload


def unresolved(payload: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821
def unreadable(payload: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_payload, "must take (payload) or (payload, context)"),
        (too_many, "must take (payload) or (payload, context)"),
        (keyword, "must take (payload) or (payload, context)"),
        (generator, "is a generator: calling it would run nothing"),
        (async_generator, "is a generator: calling it would run nothing"),
        (unresolved, "types must be defined at the top of a module"),
        (Email, "is a class; give a function"),
        ("text", "is no function"),
        (threading.Lock, "does not tell what it takes"),
    ],
)
def test_functions_that_cannot_be_tasks_are_refused(workshop: Workshop, function: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        workshop.tasks.task("t")(function)
    assert "task 't'" in str(caught.value)
    assert words in str(caught.value)


def test_two_tasks_with_one_id_are_refused(workshop: Workshop) -> None:
    workshop.tasks.task("t")(lambda payload: None)
    with pytest.raises(ConfigurationError, match=r"there is a task 't' already, tests\.tasks\.test_tasks"):
        workshop.tasks.task("t")(no_payload)


@pytest.mark.parametrize("id", ["", None, 1, "x" * 256])
def test_ids_are_texts_that_fit(workshop: Workshop, id: Any) -> None:
    with pytest.raises(ConfigurationError, match="the id of a task"):
        workshop.tasks.task(id)(lambda payload: None)


@pytest.mark.parametrize("options", [{"timeout": "0s"}, {"timeout": "soon"}, {"retry": "sometimes"}])
def test_options_that_cannot_work_are_refused(workshop: Workshop, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        workshop.tasks.task("t", **options)(lambda payload: None)


def test_a_retry_is_at_a_time_or_after_a_delay() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        Retry(at=datetime.now(UTC), delay=1)
    with pytest.raises(ConfigurationError, match="no time zone"):
        Retry(at=datetime(2030, 1, 1))


def test_a_relay_without_anything_to_do_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="or tasks to run"):
        Relay(workshop.store)


def test_modules_can_be_discovered(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match=r"'no\.such\.module' with tasks cannot be imported"):
        workshop.tasks.discover("no.such.module")
    assert workshop.tasks.discover("json") is workshop.tasks


async def test_dead_tasks_are_listed_by_their_id(workshop: Workshop) -> None:
    @workshop.tasks.task("mail.send")
    def fail(payload: Any) -> None:
        raise ValueError("no")

    workshop.schedule(fail)
    await workshop.drain()
    [entry] = await workshop.store.entries(Query(type="mail.*"))
    assert entry.state == "dead"


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


async def test_an_answer_that_is_no_decision_is_said(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    @workshop.tasks.task("t", on_failure=lambda payload, context, error: Ignore)
    def fail(payload: Any) -> None:
        raise ValueError("no")

    workshop.schedule(fail)
    assert (await workshop.drain()).dead == 1
    assert "which is no decision" in caplog.text


async def test_partials_and_objects_can_be_tasks(workshop: Workshop) -> None:
    class Callable:
        def __call__(self, payload: int) -> None:
            workshop.done.append(payload)

    def add(amount: int, payload: int) -> None:
        workshop.done.append(amount + payload)

    one = workshop.tasks.task("one")(Callable())
    other = workshop.tasks.task("other")(partial(add, 10))
    workshop.schedule(one, 1)
    workshop.schedule(other, 1)
    await workshop.drain()
    assert sorted(workshop.done) == [1, 11]
