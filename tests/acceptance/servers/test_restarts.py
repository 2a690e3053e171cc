"""The database goes away at the worst moment and comes back: the relay recovers by itself, and does the right thing."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from postroom import Message, Outbox, Relay
from postroom.errors import StoreError
from postroom.ports import Batch
from postroom.publishers.memory import MemoryPublisher
from postroom.relay.wiring import store_for
from postroom.stores import postgresql, sql_server
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql_bell import BELL_LOCK
from postroom.stores.sql_transaction import Transaction
from tests.acceptance.servers.crowd import in_thread
from tests.acceptance.servers.database import TABLES, TOPIC, Database
from tests.acceptance.servers.deliveries import Complaints, duplicates, first_versions, ids, relay_running
from tests.acceptance.servers.hands import ConnectionHand
from tests.acceptance.servers.throwaway import Throwaway, throwaway
from tests.conftest import server_url
from tests.proxy import Condition, Proxy
from tests.waiting import eventually

KEYS = [f"order-{number}" for number in range(20)]
SETTINGS: dict[str, Any] = {"lease_ttl": "2s", "publish_timeout": "500ms", "batch_size": 20}
IN_FLIGHT = 4 * 2 * 20
"""What a relay may have in memory: two batches for each of its workers."""
SOON = sql_server.STATEMENT_TIMEOUT / 3
"""Much sooner than a statement that may have a lot to do is given up."""


class SlowPublisher(MemoryPublisher):
    """So that something is going on whenever something happens."""

    async def publish(self, batch: Batch) -> None:
        await asyncio.sleep(0.02)
        await super().publish(batch)


class CountingPublisher(MemoryPublisher):
    calls = 0

    async def publish(self, batch: Batch) -> None:
        self.calls += 1
        await super().publish(batch)


def add(database: Database, count: int, first: int = 1) -> None:
    """Of each key so many messages, numbered."""
    versions = range(first, first + count)
    messages = [Message(topic=TOPIC, payload={"version": n}, key=key) for n in versions for key in KEYS]
    with database.connection() as connection:
        Outbox().add_many(connection, messages)
        connection.commit()


def all_arrive(database: Database, publisher: MemoryPublisher, count: int) -> None:
    """In order, and nothing is left."""
    eventually(lambda: len(set(ids(publisher))) >= count * len(KEYS), otherwise=lambda: len(publisher.messages))
    eventually(lambda: database.count("outbox") == 0)
    assert first_versions(publisher.messages) == {key: list(range(1, count + 1)) for key in KEYS}


# --- sessions that end in the middle of a statement


@contextmanager
def locker_of_table(database: Database) -> Iterator[ConnectionHand]:
    """Nobody else can read or write it."""
    with ConnectionHand(database, Outbox()) as locker:
        locker.run("LOCK TABLE postroom_outbox" if database.is_postgresql else "LOCK TABLES postroom_outbox WRITE")
        yield locker


def test_sessions_that_end_in_the_middle_of_a_read_cost_nothing(database: Database) -> None:
    publisher = SlowPublisher()
    with relay_running(database, publisher, **SETTINGS):
        add(database, 20)
        eventually(lambda: publisher.messages)
        with locker_of_table(database) as locker:
            for _ in range(3):
                eventually(lambda: database.waiting_for_a_lock() and database.end_sessions(locker.session))
        all_arrive(database, publisher, 20)
    assert duplicates(ids(publisher)) == 0


def test_sessions_that_end_in_the_middle_of_a_settlement_cost_nothing_as_it_is_settled_again(
    database: Database,
) -> None:
    publisher = MemoryPublisher()
    add(database, 5)
    with ConnectionHand(database, Outbox()) as locker:
        locker.run("SELECT * FROM postroom_outbox FOR UPDATE")
        with relay_running(database, publisher, **SETTINGS):
            for _ in range(2):
                eventually(lambda: database.waiting_for_a_lock() and database.end_sessions(locker.session))
            locker.rollback()
            all_arrive(database, publisher, 5)
    assert duplicates(ids(publisher)) == 0


def test_sessions_that_end_again_and_again_lose_and_reorder_nothing(database: Database) -> None:
    publisher = SlowPublisher()
    with relay_running(database, publisher, **SETTINGS):
        for number in range(8):
            before = len(publisher.messages)
            add(database, 5, first=5 * number + 1)
            eventually(lambda before=before: len(publisher.messages) > before)
            database.end_sessions()
        all_arrive(database, publisher, 40)
    assert duplicates(ids(publisher)) == 0


# --- the server itself


@pytest.fixture
def crashing(server: str) -> Iterator[Any]:
    server_url(server)  # skip if there is none
    with throwaway(server) as private:
        yield private


def test_a_server_that_crashes_and_starts_again_loses_and_reorders_nothing(crashing: Any) -> None:
    server, database = crashing
    publisher = SlowPublisher()
    with relay_running(database, publisher, **SETTINGS):
        for number in range(2):
            before = len(publisher.messages)
            add(database, 20, first=20 * number + 1)
            eventually(lambda before=before: len(publisher.messages) > before)
            server.crash()
            database.close()
            server.start_again()
        all_arrive(database, publisher, 40)
    assert duplicates(ids(publisher)) <= 2 * IN_FLIGHT


def test_a_transaction_that_was_prepared_before_a_crash_is_delivered_in_its_place(crashing: Any) -> None:
    server, database = crashing
    if not database.is_postgresql:
        return
    publisher = MemoryPublisher()
    database.create_aggregates([KEYS[0]])
    database.ask("DROP SEQUENCE postroom_bell")  # who rings cannot prepare
    outbox = Outbox(create_tables=False)
    with relay_running(database, publisher, create_tables=False, **SETTINGS):
        with ConnectionHand(database, outbox) as straggler:
            straggler.lock_and_add(KEYS[0])
            straggler.run("PREPARE TRANSACTION 'straggler'")
        let_pass(database, publisher)
        server.crash()
        database.close()
        server.start_again()
        let_pass(database, publisher)
        with ConnectionHand(database, outbox) as other:
            waiting = in_thread(lambda: (other.lock_and_add(KEYS[0]), other.commit()))
            eventually(database.waiting_for_a_lock)
            let_pass(database, publisher)
            database.ask("COMMIT PREPARED 'straggler'")
            waiting.join()
        eventually(
            lambda: len(first_versions(publisher.messages).get(KEYS[0], [])) == 2,
            within=20,
            otherwise=lambda: first_versions(publisher.messages),
        )
        assert first_versions(publisher.messages)[KEYS[0]] == [1, 2]


def let_pass(database: Database, publisher: MemoryPublisher) -> None:
    """Messages of other keys, in all slots, delivered."""
    with database.connection() as connection:
        messages = [Message(topic=TOPIC, payload={"version": 0}, key=f"other-{n}") for n in range(200)]
        added = {message.id for message in Outbox(create_tables=False).add_many(connection, messages)}
        connection.commit()
    eventually(lambda: added <= set(ids(publisher)))


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_replica_that_lacks_the_last_commits_takes_over_and_what_it_is_given_is_delivered(driver: str) -> None:
    """It gives out positions a second time. What the relay knows of the first ones must not touch the others."""
    server_url("postgresql-15")  # skip if there is none
    with throwaway("postgresql-15") as (server, database):
        publisher = CountingPublisher()
        url = database.url.replace("postgresql", f"postgresql+{driver}", 1)
        settings = SETTINGS | {"lease_ttl": "12s"}  # longer than the take-over takes
        with relay_running(database, publisher, url=url, **settings):
            add(database, 5)
            all_arrive(database, publisher, 5)
            crash(server, database)
            server.back_up()
            server.start_again()
            add(database, 20, first=6)
            all_arrive(database, publisher, 25)
            publisher.stall()
            add(database, 1, first=0)  # which the relay reads and hands over, and may well deliver
            calls = publisher.calls
            eventually(lambda: publisher.calls > calls)
            crash(server, database)
            server.promote_backup()
            publisher.messages.clear()
            add(database, 22, first=1)
            publisher.recover()
            wanted = {key: list(range(1, 23)) for key in KEYS}
            eventually(lambda: first_versions(publisher.messages) == wanted)
            eventually(lambda: database.count("outbox") == 0)


def crash(server: Throwaway, database: Database) -> None:
    server.crash()
    database.close()


# --- the network


def test_connections_that_are_cut_again_and_again_lose_and_reorder_nothing(database: Database) -> None:
    publisher = SlowPublisher()
    with Proxy(database.url) as proxy, relay_running(database, publisher, url=proxy.url, **SETTINGS):
        for number in range(8):
            before = len(publisher.messages)
            add(database, 5, first=5 * number + 1)
            eventually(lambda before=before: len(publisher.messages) > before)
            proxy.cut()
        all_arrive(database, publisher, 40)
    assert duplicates(ids(publisher)) == 0


@pytest.mark.parametrize("retention", [None, "1h"])
def test_a_connection_that_is_cut_after_the_commit_was_sent_settles_once(
    database: Database, retention: str | None
) -> None:
    """The database has settled the message, and the relay does not know."""
    publisher = MemoryPublisher()
    settings = SETTINGS | {"workers": 1, "retention": retention}
    with Proxy(database.url) as proxy, relay_running(database, publisher, url=proxy.url, **settings):
        for number in range(3):
            add_one(database)
            eventually(lambda number=number: len(publisher.messages) > number)
            eventually(lambda: database.count("outbox") == 0)
            if number == 1:
                assert proxy.swallowed.wait(30)
                proxy.heal()
            if number == 0:
                proxy.swallow_answers(is_settling(database, retention))
    assert len(publisher.messages) == 3
    assert database.count("archive") == (3 if retention else 0)


def add_one(database: Database) -> None:
    with database.connection() as connection:
        Outbox().add(connection, TOPIC, {"version": 0}, key=KEYS[0])
        connection.commit()


def is_settling(database: Database, retention: str | None) -> Condition:
    """Whether what the relay says now ends a transaction in which a message is deleted."""
    if retention and not database.is_postgresql:
        ends = re.compile(rb"COMMIT|ROLLBACK")
        return lambda said, data: data.endswith(b"COMMIT") and b"INTO postroom_archive" in ends.split(said)[-2]
    return says(database, b"DELETE[^\0]*postroom_outbox")


def says(database: Database, pattern: bytes) -> Condition:
    """Whether the relay asks for a statement like this now."""
    if not database.is_postgresql:
        return lambda _, data: bool(re.search(pattern, data))

    def binds(said: bytes, data: bytes) -> bool:
        """A prepared statement is named when it is parsed, and called by its name when it is bound and executed."""
        names = re.findall(rb"P.{4}([^\0]+)\0[^\0]*" + pattern, said, re.DOTALL)
        return b"B" in data and any(b"\0" + name + b"\0" in data for name in names)

    return binds


def test_a_relay_gives_up_connections_that_have_stalled(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_server, "STATEMENT_TIMEOUT", 1.0)
    publisher, complaints = SlowPublisher(), Complaints()
    with Proxy(database.url) as proxy, relay_running(database, publisher, complaints, url=proxy.url, **SETTINGS):
        add(database, 10)
        eventually(lambda: publisher.messages)
        proxy.stall()
        add(database, 10, first=11)
        all_arrive(database, publisher, 20)
        proxy.heal()
    assert complaints.errors
    assert duplicates(ids(publisher)) <= IN_FLIGHT


@pytest.mark.parametrize("ending", [b"COMMIT", b"ROLLBACK"])
def test_a_settlement_that_does_not_hear_of_its_end_is_soon_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch, ending: bytes
) -> None:
    if database.is_postgresql:
        return  # a single statement
    monkeypatch.setattr(sql_server, "STATEMENT_TIMEOUT", 1.0)
    publisher = MemoryPublisher()
    settings = SETTINGS | {"workers": 1, "retention": "1h"}
    with Proxy(database.url) as proxy, relay_running(database, publisher, url=proxy.url, **settings):
        for number in range(3):
            add_one(database)
            eventually(lambda number=number: len(publisher.messages) > number, within=SOON)
            eventually(lambda: database.count("outbox") == 0, within=SOON)
            if number == 0:
                proxy.swallow_answer(lambda said, data: data.endswith(ending) and b"archive" in said)
    assert proxy.swallowed.is_set()


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy", "mysql+aiomysql"])
async def test_transactions_that_do_not_hear_of_their_end_give_their_connections_back(
    database_of_this_worker: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, driver: str, ending: str
) -> None:
    def work(transaction: Transaction) -> None:
        transaction.connection.exec_driver_sql("SELECT 4711")
        if ending == "ROLLBACK":
            raise ZeroDivisionError

    url = make_url(database_of_this_worker("postgresql-15" if "postgresql" in driver else "mariadb"))
    with Proxy(url.render_as_string(hide_password=False)) as proxy:
        store: Any = store_for(proxy.url.replace(url.drivername, driver, 1), Outbox())
        await store.open()
        proxy.swallow_answers(lambda said, data: b"4711" in said and ending.encode() in data)
        with monkeypatch.context() as patched:
            patched.setattr(sql_server, "STATEMENT_TIMEOUT", 1.0)
            for _ in range(3):
                async with asyncio.timeout(SOON):
                    with suppress(StoreError, ZeroDivisionError):
                        await store._write(work)
        assert proxy.swallowed.is_set()
        assert store._opened().pool.checkedout() == 0
        proxy.heal()
        await store.left()
        await store.close()


def test_a_renewal_without_an_answer_is_sent_again_while_the_lease_lasts(database: Database) -> None:
    publisher = MemoryPublisher()
    with Proxy(database.url) as proxy, relay_running(database, publisher, url=proxy.url, **SETTINGS):
        add(database, 1)
        all_arrive(database, publisher, 1)
        proxy.swallow_answer(says(database, b"UPDATE postroom_leases"))
        assert proxy.swallowed.wait(30)
        for is_old in (True, False):
            eventually(lambda is_old=is_old: (oldest_lease(database) < 1.5) == is_old, within=SOON)


def oldest_lease(database: Database) -> float:
    return min(lease.expires_in for lease in database.leases().values())


def test_a_look_without_an_answer_is_soon_taken_again(database: Database) -> None:
    publisher = MemoryPublisher()
    with Proxy(database.url) as proxy, relay_running(database, publisher, url=proxy.url, **SETTINGS):
        add(database, 1)
        all_arrive(database, publisher, 1)
        proxy.swallow_answer(says(database, b"postroom_outbox[^\0]*postroom_later"))
        assert proxy.swallowed.wait(30)
        add(database, 1, first=2)
        eventually(lambda: len(publisher.messages) == 2 * len(KEYS), within=SOON)


def test_a_relay_that_cannot_tell_writers_to_ring_looks_by_itself(database: Database) -> None:
    """Another one was frozen as it told them, say."""
    if not database.is_postgresql:
        return
    publisher = MemoryPublisher()
    with ConnectionHand(database, Outbox()) as frozen:
        frozen.run(f"SELECT pg_advisory_xact_lock({BELL_LOCK})")
        with relay_running(database, publisher, **SETTINGS):
            eventually(database.waiting_for_a_lock)
            for number in range(1, 4):
                add(database, 1, first=number)
                eventually(lambda number=number: len(publisher.messages) == number * len(KEYS), within=SOON)


async def test_a_relay_that_was_frozen_in_the_middle_of_a_statement_does_not_keep_its_locks(
    newest: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said what it will ask for, and not asked. The server does not call that idle."""
    monkeypatch.setattr(postgresql, "LIMIT_TRANSACTIONS", postgresql.LIMIT_TRANSACTIONS.replace("30s", "1s"))
    store = PostgresqlStore(newest.url)
    await store.open()
    with suppress(DBAPIError):  # the server has ended its session
        async with store._opened().connect() as frozen:
            await frozen.exec_driver_sql("SELECT * FROM postroom_leases FOR UPDATE")
            driver: Any = (await frozen.get_raw_connection()).driver_connection
            await driver.prepare("SELECT 1")
            await asyncio.to_thread(newest.ask, "UPDATE postroom_leases SET mark = mark")
    await store.close()


# --- time-outs


@contextmanager
def hasty_role(database: Database) -> Iterator[str]:
    """The URL of a role whose statements may take 300 ms."""
    name, at = f"hasty_{secrets.token_hex(4)}", database.parts.database
    if database.is_postgresql:
        database.ask(f"CREATE ROLE {name} LOGIN SUPERUSER")
        database.ask(f"ALTER ROLE {name} SET statement_timeout = '300ms'")
    else:
        database.ask(f"CREATE USER {name}@'%%' WITH MAX_STATEMENT_TIME 0.3")
        database.ask(f"GRANT ALL ON {at}.* TO {name}@'%%'")
    try:
        yield database.parts.set(username=name).render_as_string()
    finally:
        if database.is_postgresql:
            database.ask(f"REASSIGN OWNED BY {name} TO CURRENT_USER")  # days of the archive, which a relay makes
            database.ask(f"DROP ROLE {name}")
        else:
            database.ask(f"DROP USER {name}@'%%'")


def test_statements_that_take_too_long_are_tried_again_until_they_do_not(database: Database) -> None:
    publisher, complaints = SlowPublisher(), Complaints()
    with hasty_role(database) as url, relay_running(database, publisher, complaints, url=url, **SETTINGS):
        add(database, 20)
        eventually(lambda: publisher.messages)
        with locker_of_table(database):
            eventually(lambda: any(is_of_time(error) for error in complaints.errors))
        all_arrive(database, publisher, 20)
        eventually(lambda: complaints.recoveries)
    assert duplicates(ids(publisher)) == 0


def is_of_time(error: str) -> bool:
    return "timeout" in error or "max_statement_time" in error


# --- tables that vanish


@pytest.mark.parametrize("maker", ["postroom init", "the application"])
def test_a_relay_whose_tables_are_dropped_says_so_and_goes_on_when_they_are_back(
    database: Database, maker: str
) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()
    with relay_running(database, publisher, complaints, **SETTINGS):
        add(database, 5)
        all_arrive(database, publisher, 5)
        drop_tables(database)
        eventually(lambda: any(error.startswith("TablesMissing") for error in complaints.errors))
        assert all(remedy_is_told(error) for error in complaints.errors if error.startswith("TablesMissing"))
        create_tables(database, maker)
        add(database, 5, first=6)
        all_arrive(database, publisher, 10)
    assert complaints.recoveries


def drop_tables(database: Database) -> None:
    """One by one: whoever holds the locks of several may lose to the relay in a deadlock."""
    TABLES.metadata.drop_all(database.engine.execution_options(isolation_level="AUTOCOMMIT"))


def remedy_is_told(error: str) -> bool:
    return "postroom_" in error and "postroom init" in error


def create_tables(database: Database, maker: str) -> None:
    if maker == "the application":
        Outbox().create_tables(database.engine)
        return

    async def init() -> None:
        store = store_for(database.url, Outbox())
        await store.open()
        await store.close()

    asyncio.run(init())


def count_anew(database: Database) -> None:
    """Empty the table so that positions begin at 1 again, as fixtures and clean-ups do."""
    database.ask("TRUNCATE postroom_outbox" + (" RESTART IDENTITY" if database.is_postgresql else ""))


def drain(database: Database) -> list[str]:
    publisher = MemoryPublisher()
    asyncio.run(Relay(database.url, publisher, **SETTINGS).drain(timeout=20))
    return ids(publisher)


def test_a_table_that_was_emptied_and_counts_anew_is_read_from_the_start(database: Database) -> None:
    add(database, 5)
    with relay_running(database, MemoryPublisher(), **SETTINGS):
        eventually(lambda: any(lease.mark > len(KEYS) for lease in database.leases().values()))
    count_anew(database)
    add(database, 1)
    assert database.value("SELECT max(position) FROM postroom_outbox") <= len(KEYS)
    assert len(drain(database)) == len(KEYS)

    count_anew(database)
    add(database, 1)
    publisher = MemoryPublisher()
    with relay_running(database, publisher, **SETTINGS):
        eventually(lambda: len(ids(publisher)) == len(KEYS))
        eventually(lambda: database.count("outbox") == 0)
