"""What a pump says of its destination."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from postroom import events
from postroom.clock import SystemClock
from postroom.errors import StoreError, StoreUnavailable
from postroom.ports import Features
from postroom.relay.breaker import Breaker
from postroom.relay.memory import BreakerChanged, Changes
from postroom.relay.outlet import Outlet
from postroom.relay.plan import Plan
from postroom.relay.pump import Pump, Tally
from postroom.settings import Settings


class SlowStore:
    """Takes its time for the first report, and fails if it is told to."""

    sweep_interval = 60.0

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def report_trip(self, destination: str, relay: str, error: str) -> None:
        self.asked.set()
        await self.may_go_on.wait()
        self.reports.append("tripped")

    async def report_success(self, destination: str) -> None:
        if self.error is not None:
            raise self.error
        self.reports.append("closed")


def two_pumps(store: SlowStore, told: list[events.Event]) -> list[tuple[Pump, Outlet]]:
    """Of one relay."""
    breaker, changes = Breaker(initial=1.0, cap=60.0, trip_after=5), Changes()
    pumps: list[tuple[Pump, Outlet]] = []
    for _ in range(2):
        outlet = Outlet(name="out", features=Features(), breaker=breaker)
        plan = Plan(
            relay="me",
            settings=Settings.of(),
            outlets=[outlet],
            route=lambda _, outlet=outlet: outlet,
            random=lambda: 0.5,
            publish_timeout=5.0,
            changes=changes,
        )
        unused = cast(Any, None)
        pump = Pump(
            name="default",
            relay="me",
            store=cast(Any, store),
            plan=plan,
            outlets=[outlet],
            publishers={},
            settings=Settings.of(),
            clock=SystemClock(),
            notice=told.append,
            tally=Tally(),
            journal=unused,
            find_another=unused,
        )
        pumps.append((pump, outlet))
    return pumps


async def test_an_outage_is_over_after_it_began_whichever_pump_tells_of_it() -> None:
    store, told = SlowStore(), list[events.Event]()
    (pump, outlet), (other, other_outlet) = two_pumps(store, told)
    pump.plan.changes.append(BreakerChanged(outlet, "tripped"))
    telling = asyncio.create_task(other.step())
    await store.asked.wait()
    other.plan.changes.append(BreakerChanged(other_outlet, "closed"))
    await pump.step()
    store.may_go_on.set()
    await telling
    assert [type(event) for event in told] == [events.BreakerOpened, events.BreakerClosed]
    assert store.reports == ["tripped", "closed"]


async def test_what_cannot_be_written_down_is_told_at_once_and_written_later_and_disturbs_nothing() -> None:
    store, told = SlowStore(), list[events.Event]()
    (pump, outlet), _ = two_pumps(store, told)
    pump.plan.changes.append(BreakerChanged(outlet, "closed"))
    store.error = StoreUnavailable("somebody has locked that row")
    await pump.step()
    assert [type(event) for event in told] == [events.BreakerClosed]
    store.error = None
    await pump.step()
    assert not store.reports  # not at once
    pump.plan.changes.write_at = 0.0
    await pump.step()
    await pump.step()
    assert store.reports == ["closed"]
    assert len(told) == 1


async def test_of_a_destination_only_the_latest_is_written_down() -> None:
    store = SlowStore()
    (pump, outlet), _ = two_pumps(store, [])
    pump.plan.changes.extend(BreakerChanged(outlet, state) for state in ("tripped", "closed") * 5)
    await pump.step()
    assert store.reports == ["closed"]


async def test_a_store_that_refuses_to_write_it_down_is_not_asked_for_ever() -> None:
    store, told = SlowStore(), list[events.Event]()
    (pump, outlet), _ = two_pumps(store, told)
    pump.plan.changes.append(BreakerChanged(outlet, "closed"))
    store.error = StoreError("no right to do that")
    with pytest.raises(StoreError):
        await pump.step()
    await pump.step()
    assert [type(event) for event in told] == [events.BreakerClosed]
    assert not pump.plan.changes.unwritten
