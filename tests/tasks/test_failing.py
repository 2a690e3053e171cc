"""Tasks that fail, and tasks that take too long."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from postroom import Block, DestinationUnavailable, Fixed, Ignore, Message, Retry, TaskContext, Tasks
from postroom.ports import Query
from tests.tasks.workshop import Workshop
from tests.waiting import until

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


async def test_an_answer_that_is_no_decision_is_said(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    @workshop.tasks.task("t", on_failure=lambda payload, context, error: Ignore)
    def fail(payload: Any) -> None:
        raise ValueError("no")

    workshop.schedule(fail)
    assert (await workshop.drain()).dead == 1
    assert "which is no decision" in caplog.text


async def test_dead_tasks_are_listed_by_their_id(workshop: Workshop) -> None:
    @workshop.tasks.task("mail.send")
    def fail(payload: Any) -> None:
        raise ValueError("no")

    workshop.schedule(fail)
    await workshop.drain()
    [entry] = await workshop.store.entries(Query(type="mail.*"))
    assert entry.state == "dead"


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
