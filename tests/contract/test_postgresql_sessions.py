"""What a relay's sessions on PostgreSQL are told, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from postroom import StoreReplaced, StoreUnavailable
from postroom.ports import Range
from postroom.stores import sql
from postroom.stores.drivers import Drivers
from postroom.stores.postgresql import PostgresqlDialect, PostgresqlStore
from postroom.stores.sql_claims import Claim, Wanted

NEW = [Range(slot, 0, 10) for slot in range(4)]


@pytest_asyncio.fixture
async def store(database_of_this_worker: Callable[[str], str]) -> AsyncGenerator[PostgresqlStore]:
    store = PostgresqlStore(database_of_this_worker("postgresql-15"))
    await store.open()
    yield store
    await store.close()


async def settings_of(connection: Any) -> dict[str, str]:
    names = [
        "jit",
        "plan_cache_mode",
        "enable_seqscan",
        "enable_sort",
        "idle_in_transaction_session_timeout",
        "tcp_keepalives_idle",
    ]
    rows = await connection.fetch("SELECT name, current_setting(name) FROM unnest($1::text[]) AS name", names)
    return dict(tuple(row) for row in rows)


ALL = {"idle_in_transaction_session_timeout": "5s", "tcp_keepalives_idle": "10"}


async def test_the_statements_of_the_hot_path_are_planned_once_and_by_indexes(store: PostgresqlStore) -> None:
    await store.fetch(NEW)
    [connection, *_] = store._drivers.open()
    assert await settings_of(connection) == ALL | {
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_sort": "off",
    }


async def test_no_message_waits_until_what_is_hardly_ever_read_is_compiled(store: PostgresqlStore) -> None:
    again = [asked._replace(after=5, low=0) for asked in NEW]
    async with store.wakeup(1.0):
        before = set(store._prepared)
        for ranges, limit in ((NEW, None), (NEW, 1), (again, None), (again, 1)):
            await store._read_slots(ranges, limit, ())
        await store._read_stragglers(again, ())
        await store._look(NEW)
        assert set(store._prepared) == before


async def test_a_session_of_transactions_has_its_limits_and_the_plans_of_the_server(store: PostgresqlStore) -> None:
    async with store._opened().connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        settings = await settings_of(driver)
    assert settings.items() >= ALL.items()
    assert settings["enable_seqscan"] == "on"


async def test_a_pool_that_does_not_answer_is_not_waited_for(
    store: PostgresqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "CLOSING_TIME", 0.01)
    begun = asyncio.Event()

    async def dispose() -> None:
        begun.set()
        await asyncio.Event().wait()

    engine = store._opened()
    monkeypatch.setattr(type(engine), "dispose", lambda self: dispose())
    async with asyncio.timeout(10):
        await store._disconnect()
    assert begun.is_set()
    monkeypatch.undo()
    await engine.dispose()


async def test_a_claim_that_failed_is_to_look_again_where_it_was_to_look(
    store: PostgresqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fetch is: what it was to look at again is still to be looked at."""
    stragglers = store._stragglers
    stragglers.begin([0])
    stragglers.answered(7, {})

    async def fail(claim: Claim, wanted: Wanted) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "_claim_hot", fail)
    with pytest.raises(StoreUnavailable):
        await store.claim_hot(Claim("me", 10.0), Wanted([0], 10))
    assert stragglers.may_have_come(0, 1)


def test_a_driver_that_cannot_follow_its_server_has_lost_it() -> None:
    dialect, error = PostgresqlDialect(), asyncpg.InternalClientError("got a result for nothing")
    assert isinstance(error, dialect.driver_errors)
    assert dialect.is_unavailable(error)


async def test_only_a_relay_minds_that_another_server_answers(database_of_this_worker: Callable[[str], str]) -> None:
    """A desk knows nothing that could be wrong."""
    url = database_of_this_worker("postgresql-15")
    desk, relay = PostgresqlStore(url), PostgresqlStore(url)
    await desk.open()
    await relay.open(claim="slots")
    for store in (desk, relay):
        store._history = "another cluster/00000001"
        store._drivers.close()
        store._drivers = Drivers(store._connect_driver, store._end_driver, store._is_closed)
    assert (await desk.fetch(NEW)).messages == []
    with pytest.raises(StoreReplaced):
        await relay.fetch(NEW)
    await relay.close()
    await desk.close()
