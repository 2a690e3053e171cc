"""Connections to brokers that are made when they are needed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from postroom.wire.sessions import Sessions


class Connection:
    def __init__(self) -> None:
        self.lost: str | None = None

    async def close(self) -> None:
        self.lost = "closed"


class Broker:
    """Lets a connection in when it is told to."""

    def __init__(self) -> None:
        self.asked = self.abandoned = 0
        self.answer: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def open(self) -> Connection:
        self.asked += 1
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise


async def given_up(sessions: Sessions[Connection]) -> None:
    """A call that has no time to wait for it."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await sessions.take()


async def test_one_that_takes_longer_than_a_call_may_take_is_there_for_the_next() -> None:
    broker = Broker()
    sessions = Sessions[Connection](broker.open)
    await given_up(sessions)
    await given_up(sessions)
    broker.answer.set_result(connection := Connection())
    assert await sessions.take() is connection
    assert (broker.asked, broker.abandoned) == (1, 0)


async def test_one_that_was_lost_is_made_anew_for_all_who_wait_for_it() -> None:
    broker = Broker()
    sessions = Sessions[Connection](broker.open)
    broker.answer.set_result(first := Connection())
    assert await sessions.take() is first
    first.lost, broker.answer = "reset", asyncio.get_running_loop().create_future()
    waiting = [asyncio.create_task(sessions.take()) for _ in range(3)]
    await asyncio.sleep(0)
    broker.answer.set_result(second := Connection())
    assert await asyncio.gather(*waiting) == [second] * 3
    assert broker.asked == 2


async def test_all_who_wait_for_it_hear_that_it_was_refused_and_the_next_call_tries_again() -> None:
    broker = Broker()
    sessions = Sessions[Connection](broker.open)
    waiting = [asyncio.create_task(sessions.take()) for _ in range(3)]
    await asyncio.sleep(0)
    broker.answer.set_exception(ConnectionRefusedError("no"))
    assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [
        ConnectionRefusedError
    ] * 3
    broker.answer = asyncio.get_running_loop().create_future()
    broker.answer.set_result(connection := Connection())
    assert await sessions.take() is connection
    assert broker.asked == 2


async def test_to_close_ends_the_opening_too() -> None:
    broker = Broker()
    sessions = Sessions[Connection](broker.open)
    await given_up(sessions)
    await sessions.close()
    assert (broker.asked, broker.abandoned) == (1, 1)


async def test_what_nobody_waits_for_any_more_may_fail_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    sessions = Sessions[Connection](broker.open)
    await given_up(sessions)
    broker.answer.set_exception(ConnectionRefusedError("no"))
    for _ in range(5):
        await asyncio.sleep(0)
    await sessions.close()
    gc.collect()
    assert caplog.records == []


def test_on_another_loop_it_is_made_anew() -> None:
    made: list[Connection] = []

    async def open() -> Connection:
        made.append(Connection())
        return made[-1]

    sessions = Sessions[Connection](open)
    assert asyncio.run(sessions.take()) is made[0]
    assert asyncio.run(sessions.take()) is made[1]
    asyncio.run(sessions.close())
