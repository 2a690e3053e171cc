"""Connections past SQLAlchemy: those that have ended are neither lent again nor taken for ours."""

from __future__ import annotations

import pytest

from postroom.stores.drivers import Drivers


class Line:
    """A connection, as far as this knows one."""

    def __init__(self) -> None:
        self.is_closed = False


def end(line: Line) -> None:
    line.is_closed = True


async def connect() -> Line:
    return Line()


@pytest.fixture
def drivers() -> Drivers:
    return Drivers(connect, end, lambda line: line.is_closed)


async def two_spare(drivers: Drivers) -> tuple[Line, Line]:
    async with drivers.borrow() as one, drivers.borrow() as other:
        return one, other


async def test_a_connection_is_used_again(drivers: Drivers) -> None:
    async with drivers.borrow() as first:
        pass
    async with drivers.borrow() as second:
        assert second is first


async def test_the_oldest_is_lent_first_as_it_has_prepared_most(drivers: Drivers) -> None:
    oldest, other = await two_spare(drivers)
    async with drivers.borrow() as first, drivers.borrow() as second:
        assert (first, second) == (oldest, other)
    async with drivers.borrow() as first:
        assert first is oldest


async def test_a_spare_connection_that_has_ended_is_not_lent_and_not_ours(drivers: Drivers) -> None:
    one, other = await two_spare(drivers)
    end(one)
    end(other)
    assert drivers.open() == []
    async with drivers.borrow() as fresh:
        assert fresh not in (one, other)
        assert drivers.open() == [fresh]


async def fail(drivers: Drivers, *, is_cut: bool) -> None:
    async with drivers.borrow() as line:
        line.is_closed = is_cut
        raise ConnectionError


async def test_when_one_was_cut_the_spare_ones_are_not_used_again(drivers: Drivers) -> None:
    lines = await two_spare(drivers)
    with pytest.raises(ConnectionError):
        await fail(drivers, is_cut=True)
    assert all(line.is_closed for line in lines)
    assert drivers.open() == []


async def test_when_one_merely_failed_the_spare_ones_stay(drivers: Drivers) -> None:
    lines = await two_spare(drivers)
    with pytest.raises(ConnectionError):
        await fail(drivers, is_cut=False)
    assert drivers.open() == [line for line in lines if not line.is_closed]
    assert len(drivers.open()) == 1
