"""What is particular to one database or driver: what is asked before the first write, who creates, what autocommits."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import aiomysql
import asyncmy
import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from postroom.connections.writer import WORTH_A_STATEMENT
from postroom.errors import NoTransactionError, TablesMissing, UnsupportedConnection
from postroom.inbox import Inbox
from postroom.message import Message
from postroom.outbox import Outbox
from postroom.relay import Relay
from postroom.testing import FakeClock
from tests.waiting import eventually

from ..conftest import Database


@pytest.fixture
def postgresql(empty_database: Database) -> str:
    return empty_database("postgresql-15")


@pytest.fixture
def mysql(empty_database: Database) -> str:
    return empty_database("mariadb")


def options_of(url: str) -> dict[str, Any]:
    parts = make_url(url)
    port, user, password = parts.port or 3306, parts.username or "root", parts.password or ""
    return {"host": parts.host, "port": port, "user": user, "password": password}


@pytest.fixture
def engine(postgresql: str) -> Iterator[Engine]:
    engine = create_engine(make_url(postgresql).set(drivername="postgresql+psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture
def mysql_engine(mysql: str) -> Iterator[Engine]:
    engine = create_engine(make_url(mysql).set(drivername="mysql+pymysql"))
    yield engine
    engine.dispose()


def statements_of(engine: Engine) -> list[str]:
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2].split()[0]))
    return seen


def payloads(engine: Engine, outbox: Outbox) -> list[bytes]:
    with engine.connect() as connection:
        return list(connection.scalars(text(f"SELECT payload FROM {outbox.tables.hot.fullname} ORDER BY position")))


# --- PostgreSQL: what is asked


def test_whether_the_tables_are_there_is_asked_once_per_connection(engine: Engine) -> None:
    outbox = Outbox()
    outbox.create_tables(engine)
    seen = statements_of(engine)
    for expected in (["SELECT", "INSERT", "INSERT"], ["INSERT", "INSERT"]):
        with engine.begin() as connection:
            outbox.add(connection, "orders", b"1")
            outbox.add(connection, "orders", b"2")
        assert seen == expected
        seen.clear()
    with engine.begin() as one, engine.begin() as other:
        outbox.add(one, "orders", b"3")
        outbox.add(other, "orders", b"4")
    assert seen == ["INSERT", "SELECT", "INSERT"]


def test_a_bell_that_is_missing_is_looked_for_again_after_a_minute(engine: Engine) -> None:
    clock = FakeClock()
    outbox = Outbox(clock=clock)
    outbox.create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP SEQUENCE postroom_bell"))
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append("bell" if "bell" in args[2] else "plain"))
    for seconds, expected in ((0, ["bell", "plain"]), (59, ["plain"]), (1, ["bell", "plain"]), (1, ["plain"])):
        clock.advance(seconds)
        with engine.begin() as connection:
            outbox.add(connection, "orders")
        assert seen == expected
        seen.clear()
    outbox.create_tables(engine)
    clock.advance(60)
    seen.clear()
    with engine.begin() as connection:
        outbox.add(connection, "orders")
    assert seen == ["bell", "bell"]


@pytest.mark.parametrize(("size", "ringing"), [(WORTH_A_STATEMENT + 3, WORTH_A_STATEMENT + 3), (300, 4)])
def test_of_a_large_batch_each_slot_rings_once_and_the_order_of_its_keys_is_kept(
    engine: Engine, size: int, ringing: int
) -> None:
    outbox, rung = Outbox(), list[int]()
    outbox.create_tables(engine)
    event.listen(engine, "before_cursor_execute", lambda *args: rung.append(args[2].count("pg_notify")))
    with engine.begin() as connection:
        outbox.add_many(connection, [Message(topic="t", payload=b"%d" % n, key=f"k{n % 4}") for n in range(size)])
    assert sum(rung) == ringing, "four keys, each in a slot of its own"
    written = [int(payload) for payload in payloads(engine, outbox)]
    for key in range(4):
        assert [number for number in written if number % 4 == key] == list(range(key, size, 4))


def test_tables_that_vanish_are_missed_once_and_then_made_again(engine: Engine) -> None:
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"1")
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"2")
    outbox.tables.metadata.drop_all(engine)
    with pytest.raises(TablesMissing), engine.begin() as connection:
        outbox.add(connection, "orders", b"3")
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"4")
    assert payloads(engine, outbox) == [b"4"]


def test_tables_that_the_application_made_in_a_transaction_it_undoes_are_not_remembered(engine: Engine) -> None:
    outbox = Outbox()
    with engine.connect() as connection:
        outbox.tables.metadata.create_all(connection)
        with connection.begin_nested():
            outbox.add(connection, "orders", b"1")
        connection.rollback()
        outbox.add(connection, "orders", b"2")
        connection.commit()
    assert payloads(engine, outbox) == [b"2"]


def test_an_outbox_writes_to_several_databases(engine: Engine, fresh_database: Database) -> None:
    outbox = Outbox()
    other = create_engine(make_url(fresh_database("postgresql-15")).set(drivername="postgresql+psycopg"))
    for number in range(2):
        for database in (engine, other):
            with database.begin() as connection:
                outbox.add(connection, "orders", b"%d" % number)
    assert payloads(engine, outbox) == payloads(other, outbox) == [b"0", b"1"]
    other.dispose()


def test_two_first_messages_at_once_do_not_collide(postgresql: str, engine: Engine) -> None:
    outbox = Outbox()

    def second() -> None:
        with psycopg.connect(postgresql) as connection:
            outbox.add(connection, "orders", b"2")

    thread = threading.Thread(target=second)
    with psycopg.connect(postgresql) as connection:
        outbox.add(connection, "orders", b"1")
        thread.start()
        eventually(lambda: is_waiting(engine))
    thread.join()
    assert payloads(engine, outbox) == [b"1", b"2"]


def test_many_first_messages_at_once_do_not_collide(postgresql: str, engine: Engine) -> None:
    outbox = Outbox(order="strict")
    failures: list[Exception] = []

    def write() -> None:
        try:
            for _ in range(5):
                with psycopg.connect(postgresql) as connection:
                    outbox.add_many(connection, [Message(topic="orders", key=key) for key in "cab"])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(payloads(engine, outbox)) == 90


def test_creating_what_is_there_does_not_wait_for_writers(postgresql: str, engine: Engine) -> None:
    outbox = Outbox()
    outbox.create_tables(engine)
    with psycopg.connect(postgresql) as writer, psycopg.connect(postgresql) as other:
        outbox.add(writer, "orders", b"1")
        other.execute("SET lock_timeout = '5s'")
        outbox.create_tables(other)
    assert payloads(engine, outbox) == [b"1"]


def is_waiting(engine: Engine) -> bool:
    with engine.connect() as connection:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(connection.scalar(text(waiting)))


def test_a_role_that_may_only_insert_can_write_and_does_not_ring(postgresql: str, engine: Engine) -> None:
    outbox = Outbox()
    outbox.create_tables(engine)
    clerk = f"postroom_clerk_{secrets.token_hex(4)}"
    grants = ("SELECT ON SEQUENCE postroom_bell", "SELECT (slot) ON postroom_outbox", "SELECT ON postroom_outbox")
    with psycopg.connect(postgresql) as owner:
        owner.execute(f"CREATE ROLE {clerk}".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA public TO {clerk}".encode())
        owner.execute(f"GRANT INSERT ON postroom_outbox TO {clerk}".encode())
        for grant in grants:
            owner.execute(f"SET LOCAL ROLE {clerk}".encode())
            outbox.add(owner, "orders", b"1")
            owner.execute("SET LOCAL ROLE NONE")
            owner.execute(f"GRANT {grant} TO {clerk}".encode())
        assert owner.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (len(grants),)
        owner.rollback()


async def test_a_pooler_that_gives_each_transaction_another_session_does_no_harm(empty_database: Database) -> None:
    url = empty_database("pgbouncer")
    outbox = Outbox(order="strict")
    with psycopg.connect(url, prepare_threshold=None) as connection:
        for number in range(3):
            outbox.add(connection, "orders", b"%d" % number, key="a", idempotency_key=f"{number}")
            connection.commit()
        assert connection.execute("SELECT max(sequence) FROM postroom_outbox").fetchone() == (3,)
    connection = await asyncpg.connect(url, statement_cache_size=0)
    async with connection.transaction():
        message = await outbox.add_async(connection, "orders", key="a", idempotency_key="0")
        await outbox.add_many_async(connection, [Message(topic="orders", key="a") for _ in range(10)])
    assert message.duplicate is True
    assert await connection.fetchval("SELECT max(sequence) FROM postroom_outbox") == 13
    await connection.close()


def test_an_error_about_another_table_is_passed_on(postgresql: str) -> None:
    outbox = Outbox()
    with psycopg.connect(postgresql) as connection:
        outbox.create_tables(connection)
        connection.execute(
            "CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO audit VALUES (new.id); RETURN new; END'"
        )
        connection.execute("CREATE TRIGGER watch AFTER INSERT ON postroom_outbox FOR EACH ROW EXECUTE FUNCTION watch()")
        with pytest.raises(psycopg.errors.UndefinedTable, match="audit"):
            outbox.add(connection, "orders")


# --- schemas


def test_a_schema_holds_the_tables_and_the_bell(engine: Engine) -> None:
    outbox = Outbox(schema="Post Office", order="strict")
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "Post Office"'))
        outbox.add(connection, "orders", b"1", key="a", idempotency_key="x")
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"2", key="a", idempotency_key="x")
    inspector = inspect(engine)
    assert "postroom_bell" in inspector.get_sequence_names("Post Office")
    assert inspector.get_table_names() == []
    assert {table.name for table in outbox.tables.all()} <= set(inspector.get_table_names("Post Office"))


def test_sqlalchemy_may_translate_the_schema(engine: Engine) -> None:
    outbox = Outbox()
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
    for schema in ("public", "tenant", "public", "tenant"):
        with engine.connect().execution_options(schema_translate_map={None: schema}) as connection:
            outbox.add(connection, "orders", schema.encode())
            connection.commit()
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT payload FROM tenant.postroom_outbox")).all() == [b"tenant"] * 2
    assert payloads(engine, outbox) == [b"public"] * 2


def test_sqlalchemy_may_translate_the_schema_on_mysql(mysql: str, mysql_engine: Engine) -> None:
    outbox = Outbox()
    mapped = Outbox(schema="elsewhere")
    options = {"schema_translate_map": {"elsewhere": make_url(mysql).database}}
    with mysql_engine.connect().execution_options(**options) as connection:
        mapped.create_tables(connection)
        mapped.create_tables(connection)
        mapped.add_many(connection, [Message(topic="orders", payload=b"%d" % number) for number in range(3)])
        connection.commit()
    assert payloads(mysql_engine, outbox) == [b"0", b"1", b"2"]


# --- SQL to print


def test_the_ddl_of_postgresql_can_be_run_twice(postgresql: str, engine: Engine) -> None:
    outbox = Outbox(create_tables=False)
    for _ in range(2):
        with psycopg.connect(postgresql) as connection:
            connection.execute(outbox.ddl("postgresql").encode())
            outbox.add(connection, "orders", b"1")
    assert "postroom_bell" in inspect(engine).get_sequence_names()
    assert payloads(engine, outbox) == [b"1", b"1"]


def test_the_ddl_of_mariadb_can_be_run_twice_and_has_every_index(mysql: str, mysql_engine: Engine) -> None:
    outbox = Outbox(create_tables=False)
    with mysql_engine.begin() as connection:
        connection.exec_driver_sql("SET default_storage_engine = Aria")
        for statement in outbox.ddl("mariadb").split(";\n\n")[:-1] * 2:
            connection.exec_driver_sql(statement)
        outbox.add(connection, "orders", b"1")
    inspector = inspect(mysql_engine)
    for table in outbox.tables.all():
        found = {index["name"]: index["column_names"] for index in inspector.get_indexes(table.name)}
        assert found == {index.name: [column.name for column in index.columns] for index in table.indexes}
        assert inspector.get_table_options(table.name)["mysql_engine"] == "InnoDB"


# --- creating


async def test_tables_can_be_created_through_every_driver(postgresql: str, mysql: str) -> None:
    outbox = Outbox(create_tables=False)
    with psycopg.connect(postgresql) as connection:
        outbox.create_tables(connection)
        outbox.create_tables(connection)
        outbox.add(connection, "orders")
        connection.rollback()
    async with await psycopg.AsyncConnection.connect(postgresql) as connection:
        await outbox.create_tables_async(connection)
        await outbox.add_async(connection, "orders")
        await connection.rollback()
    connection = await asyncpg.connect(postgresql)
    await outbox.create_tables_async(connection)
    async with connection.transaction():
        await outbox.add_async(connection, "orders")
    await connection.close()
    database = make_url(mysql).database
    for library in (aiomysql, asyncmy):
        named = {"db": database} if library is aiomysql else {"database": database}
        connection = await library.connect(**options_of(mysql), **named)
        await outbox.create_tables_async(connection)
        await outbox.add_async(connection, "orders")
        connection.close()
    with pymysql.connect(**options_of(mysql), database=database) as connection:
        outbox.create_tables(connection)
        outbox.add(connection, "orders")


async def test_tables_can_be_created_through_every_kind_of_engine(postgresql: str, mysql: str) -> None:
    outbox = Outbox(create_tables=False)
    for url, driver in (
        (postgresql, "postgresql+asyncpg"),
        (postgresql, "postgresql+psycopg"),
        (mysql, "mysql+asyncmy"),
        (mysql, "mariadb+aiomysql"),
    ):
        engine = create_async_engine(make_url(url).set(drivername=driver))
        await outbox.create_tables_async(engine)
        async with engine.begin() as connection:
            await outbox.create_tables_async(connection)
            await outbox.add_async(connection, "orders")
        await engine.dispose()


# --- encodings


@pytest.fixture
def without_encoding(postgresql: str) -> Iterator[str]:
    """A database in which text is any bytes, which psycopg does not decode by itself."""
    name = f"postroom_test_{secrets.token_hex(6)}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0".encode())
        yield make_url(postgresql).set(database=name).render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def test_a_database_without_an_encoding_gives_the_same_answers(without_encoding: str) -> None:
    outbox, inbox = Outbox(), Inbox()
    with psycopg.connect(without_encoding) as connection:
        first, second = (outbox.add(connection, "grüße", b"1", key="ä", idempotency_key="é") for _ in range(2))
        assert (first.duplicate, second.duplicate) == (False, True)
        assert [inbox.first_time(connection, "1") for _ in range(2)] == [True, False]
    async with await psycopg.AsyncConnection.connect(without_encoding) as connection:
        assert (await outbox.add_async(connection, "grüße", b"2", key="ä", idempotency_key="ô")).duplicate is False
    received: list[Message] = []
    for driver in ("psycopg", "asyncpg"):
        url = make_url(without_encoding).set(drivername=f"postgresql+{driver}")
        await Relay(url, received.append, outbox=outbox).drain()
    assert [(message.topic, message.key, message.payload) for message in received] == [
        ("grüße", "ä", b"1"),
        ("grüße", "ä", b"2"),
    ]


# --- autocommit


def test_a_driver_told_to_autocommit_behind_sqlalchemys_back_is_refused(engine: Engine, mysql: str) -> None:
    event.listen(engine, "connect", lambda connection, record: setattr(connection, "autocommit", True))
    url = make_url(mysql).set(drivername="mysql+pymysql")
    other = create_engine(url, connect_args={"autocommit": True})
    for outbox, database in ((Outbox(), engine), (Outbox(), other)):
        outbox.create_tables(database)
        with database.begin() as connection, pytest.raises(NoTransactionError):
            outbox.add(connection, "orders", b"1")
        with database.begin() as connection:
            connection.execute(text("BEGIN"))
            outbox.add(connection, "orders", b"2")
            connection.execute(text("COMMIT"))
        assert payloads(database, outbox) == [b"2"]
    other.dispose()


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy", "mysql+aiomysql"])
async def test_an_async_engine_in_autocommit_mode_is_refused(postgresql: str, mysql: str, driver: str) -> None:
    url = make_url(mysql if "mysql" in driver else postgresql).set(drivername=driver)
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
            await Outbox().add_async(connection, "orders")
    await engine.dispose()


# --- pools


async def test_a_pool_is_answered_with_what_to_hand_over(postgresql: str, mysql: str) -> None:
    pool = await asyncpg.create_pool(postgresql, min_size=1, max_size=1)
    other = await aiomysql.create_pool(**options_of(mysql), minsize=1)
    third = await asyncmy.create_pool(**options_of(mysql), minsize=1)
    for each in (pool, other, third):
        with pytest.raises(UnsupportedConnection, match=r"pool cannot be used .* one of its connections"):
            await Outbox().add_async(each, "orders")
    await pool.close()
    for each in (other, third):
        each.close()
        await each.wait_closed()
