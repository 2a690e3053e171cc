"""What `Outbox` accepts, refuses and returns."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import aiosqlite
import pytest
from sqlalchemy import MetaData, create_engine, event, inspect, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from postroom.connections.dialects import dialect_named
from postroom.connections.drive import executions
from postroom.connections.mysql import flavour
from postroom.connections.procedure import Step
from postroom.connections.sqlite3 import would_autocommit
from postroom.connections.statements import Statements
from postroom.errors import (
    ConfigurationError,
    InvalidMessage,
    NoTransactionError,
    PayloadTooLarge,
    SerializationError,
    UnsupportedConnection,
)
from postroom.inbox import Inbox
from postroom.message import Message, slot_of
from postroom.outbox import Outbox
from postroom.testing import FakeClock


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


def rows(connection: sqlite3.Connection, outbox: Outbox, columns: str = "payload", table: str = "outbox") -> list[Any]:
    return connection.execute(f"SELECT {columns} FROM {outbox.prefix}{table}").fetchall()


# --- what comes back


def test_the_returned_message_is_what_was_written(connection: sqlite3.Connection) -> None:
    outbox = Outbox()
    message = outbox.add(connection, "orders", {"id": 1}, key="a", type="Placed", headers={"x": "y"})
    assert (message.topic, message.key, message.type) == ("orders", "a", "Placed")
    assert (message.payload, message.content_type) == (b'{"id":1}', "application/json")
    assert message.headers == {"x": "y"}
    assert (message.slot, message.duplicate, message.sequence) == (slot_of("a", message.id), None, None)


def test_a_message_that_was_handed_over_stays_as_it_was_but_for_what_it_learns(connection: sqlite3.Connection) -> None:
    payload = {"id": 1}
    given = Message(topic="orders", payload=payload, key="a", idempotency_key="x", headers={"h": "1"})
    returned = Outbox(order="strict", headers=lambda: {"tenant": "t"}).add(connection, given)
    assert returned is not given
    assert (given.payload, given.content_type, given.headers, given.slot) == (payload, None, {"h": "1"}, -1)
    assert (returned.payload, returned.headers) == (b'{"id":1}', {"tenant": "t", "h": "1"})
    for message in (given, returned):
        assert (message.duplicate, message.sequence) == (False, 1)
        assert message.generation is not None


def test_the_payload_is_serialised_at_add() -> None:
    outbox = Outbox()
    payload = {"id": 1}
    connection = sqlite3.connect(":memory:")
    outbox.add(connection, "orders", payload)
    payload["id"] = 2
    assert rows(connection, outbox) == [(b'{"id":1}',)]
    connection.close()


def test_no_payload_is_null_and_bytes_are_left_alone(connection: sqlite3.Connection) -> None:
    outbox = Outbox()
    outbox.add(connection, "orders")
    outbox.add(connection, "orders", b"{")
    outbox.add(connection, "orders", b"<a/>", content_type="text/xml")
    assert rows(connection, outbox, "payload, content_type") == [
        (b"null", "application/json"),
        (b"{", "application/octet-stream"),
        (b"<a/>", "text/xml"),
    ]


def test_a_message_may_be_added_again_as_it_came_back(connection: sqlite3.Connection) -> None:
    outbox = Outbox()
    first = outbox.add(connection, "orders", b"1", idempotency_key="x")
    second = outbox.add(connection, first)
    assert (first.duplicate, second.duplicate) == (True, True)
    assert rows(connection, outbox) == [(b"1",)]


def test_what_a_delivered_message_went_through_is_not_inherited(connection: sqlite3.Connection) -> None:
    delivered = Message(topic="orders", payload=b"1", position=7, slot=3, attempt=4, epoch=9, replays=2, sequence=5)
    returned = Outbox().add(connection, delivered)
    assert (returned.position, returned.attempt, returned.epoch, returned.replays) == (0, 1, 0, 0)
    assert (returned.sequence, returned.slot) == (None, slot_of(None, delivered.id))


def test_a_serializer_of_ones_own_is_used(connection: sqlite3.Connection) -> None:
    class Shouting:
        content_type = "text/loud"

        def dumps(self, payload: Any) -> bytes:
            return str(payload).upper().encode()

    message = Outbox(serializer=Shouting()).add(connection, "orders", "hello")
    assert (message.payload, message.content_type) == (b"HELLO", "text/loud")


# --- limits


class Colour(StrEnum):
    RED = "red"


@dataclass
class Case:
    options: dict[str, Any]
    complaint: str


REFUSED = {
    "an empty topic": Case({"topic": ""}, "topic '' is empty"),
    "a topic that is no text": Case({"topic": 5}, "topic 5 is a int, not a text"),
    "a topic of 256 characters": Case(
        {"topic": "t" * 256}, "topic 't+….* has 256 characters; shorten it to at most 255"
    ),
    "a topic with NUL": Case({"topic": "a\x00"}, "NUL"),
    "a topic with half a character": Case({"topic": "a\ud800"}, "half a character"),
    "an empty key": Case({"key": ""}, "key '' is empty; use None for no order"),
    "a number as key": Case({"key": 17}, r"key 17 is a int, not a text; use str\(key\)"),
    "a key of 256 characters": Case({"key": "k" * 256}, "key .* has 256 characters"),
    "a key with NUL": Case({"key": "\x00"}, "key .*NUL"),
    "an empty type": Case({"type": ""}, "type '' is empty"),
    "an idempotency key of 256 characters": Case(
        {"idempotency_key": "k" * 256}, "idempotency_key .* has 256 characters"
    ),
    "an idempotency key with NUL": Case({"idempotency_key": "\x00"}, "idempotency_key .*NUL"),
    "headers that are no mapping": Case({"headers": ["a"]}, "headers .* is a list; give a mapping"),
    "a header that is no text": Case({"headers": {"n": 1}}, "header 'n' 1 is a int, not a text"),
    "a header name that is no text": Case({"headers": {1: "n"}}, "header name 1 is a int"),
    "a header name of 256 characters": Case({"headers": {"n" * 256: ""}}, "header name .* has 256 characters"),
    "a header with NUL": Case({"headers": {"n": "\x00"}}, "header 'n' .*NUL"),
    "a reserved header": Case({"headers": {"Postroom-Id": "x"}}, "header name 'Postroom-Id' begins with 'postroom-'"),
    "a content type of 256 characters": Case({"content_type": "c" * 256}, "content_type .* has 256"),
    "a naive deliver_at": Case({"deliver_at": datetime(2030, 1, 1)}, "deliver_at .* has no time zone"),
    "a naive expires_at": Case({"expires_at": datetime(2030, 1, 1)}, "expires_at .* has no time zone"),
    "a text as deliver_at": Case({"deliver_at": "tomorrow"}, "deliver_at 'tomorrow' is a str, not a datetime"),
    "a time beyond UTC": Case(
        {"expires_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "out of range in UTC"
    ),
    "both delay and deliver_at": Case({"delay": 1, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "give one of them"),
    "a delay in words": Case({"delay": "soon"}, "delay: 'soon' is not a length of time"),
    "a delay that is true": Case({"delay": True}, "delay: True is not a length of time"),
    "a delay without end": Case({"delay": float("inf")}, "delay inf is out of range"),
    "a delay of centuries": Case({"delay": timedelta(days=365 * 200)}, "delay .* out of range"),
    "an id that is no UUID": Case({"id": "order-1"}, "id 'order-1' is no UUID"),
    "a number as id": Case({"id": 5}, "id 5 is no UUID"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_written_is_refused_with_field_value_and_remedy(
    connection: sqlite3.Connection, case: Case
) -> None:
    outbox = Outbox()
    outbox.create_tables(connection)
    options = dict(case.options)
    topic = options.pop("topic", "orders")
    with pytest.raises(InvalidMessage, match=case.complaint):
        outbox.add(connection, topic, b"", **options)
    with pytest.raises(InvalidMessage, match=case.complaint):
        outbox.add_many(connection, [Message(topic="fine"), Message(topic=topic, **options)])
    assert rows(connection, outbox) == []
    assert not connection.in_transaction


def test_a_payload_above_the_limit_is_refused(connection: sqlite3.Connection) -> None:
    outbox = Outbox(max_payload=10)
    outbox.add(connection, "orders", b"x" * 10)
    with pytest.raises(PayloadTooLarge, match=r"topic 'orders' has 11 bytes, more than max_payload \(10\)"):
        outbox.add(connection, "orders", b"x" * 11)
    with pytest.raises(PayloadTooLarge):
        Outbox("usual").add(connection, "orders", "x" * (1024 * 1024))
    Outbox("large", max_payload=None).add(connection, "orders", b"x" * (2 * 1024 * 1024))


def test_a_payload_that_cannot_be_serialised_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(SerializationError):
        Outbox().add(connection, "orders", object())


def test_enum_members_that_are_texts_are_stored_as_their_value(connection: sqlite3.Connection) -> None:
    message = Outbox().add(connection, Colour.RED, b"", key=Colour.RED, headers={Colour.RED: Colour.RED})
    assert (type(message.topic), message.topic, message.headers) == (str, "red", {"red": "red"})


def test_ids_are_made_canonical(connection: sqlite3.Connection) -> None:
    outbox = Outbox()
    id = uuid4()
    assert outbox.add(connection, "orders", id=id).id == str(id)
    assert outbox.add(connection, "orders", id=str(id).upper()).id == str(id)
    assert outbox.add(connection, "orders", id=id.hex).id == str(id)
    assert UUID(outbox.add(connection, "orders").id).version == 7


def test_a_message_with_options_beside_it_is_refused(connection: sqlite3.Connection) -> None:
    outbox = Outbox()
    with pytest.raises(InvalidMessage, match="a Message and key, payload were given"):
        outbox.add(connection, Message(topic="orders"), b"x", key="a")
    with pytest.raises(InvalidMessage, match=r"message 'orders' is a str; give postroom.Message objects"):
        outbox.add_many(connection, ["orders"])  # type: ignore[list-item]


def test_strict_order_refuses_delays(connection: sqlite3.Connection) -> None:
    outbox = Outbox(order="strict")
    with pytest.raises(InvalidMessage, match="strict"):
        outbox.add(connection, "orders", key="a", delay=5)
    with pytest.raises(InvalidMessage, match="strict"):
        outbox.add(connection, "orders", key="a", deliver_at=datetime(2030, 1, 1, tzinfo=UTC))


# --- default headers


def test_default_headers_come_from_the_hook_at_add_and_the_messages_own_win(connection: sqlite3.Connection) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")
    outbox = Outbox(headers=lambda: {"tenant": tenant.get(), "source": "shop"})
    tenant.set("a")
    first = outbox.add(connection, "orders")
    tenant.set("b")
    second = outbox.add(connection, "orders", headers={"source": "till"})
    assert first.headers == {"tenant": "a", "source": "shop"}
    assert second.headers == {"tenant": "b", "source": "till"}


def test_a_hook_may_have_nothing_to_say_but_must_say_it_properly(connection: sqlite3.Connection) -> None:
    assert Outbox(headers=lambda: None).add(connection, "orders").headers == {}
    with pytest.raises(InvalidMessage, match="header 'trace' 5"):
        Outbox(headers=lambda: {"trace": 5}).add(connection, "orders")  # type: ignore[dict-item]
    with pytest.raises(InvalidMessage, match="the headers hook's answer 'x' is a str"):
        Outbox(headers=lambda: "x").add(connection, "orders")  # type: ignore[return-value]


# --- settings


def test_making_an_outbox_does_nothing_else(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'absent' / 'app.db'}")
    outbox = Outbox(bind=engine)
    assert repr(outbox) == "Outbox('default', prefix='postroom_', order='key')"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [
        {"order": "loose"},
        {"prefix": "no-dashes"},
        {"name": "no dashes either"},
        {"dedupe_window": 0},
        {"dedupe_window": "soon"},
        {"bind": "sqlite://"},
        {"serializer": "nowhere.Serializer"},
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Outbox(**options)


def test_the_tables_may_live_in_the_applications_metadata() -> None:
    metadata = MetaData()
    outbox = Outbox(metadata=metadata)
    other = Outbox("other", metadata=metadata)
    assert metadata.tables["postroom_outbox"] is outbox.tables.hot
    assert metadata.tables["postroom_other_outbox"] is other.tables.hot
    with pytest.raises(ConfigurationError, match="already"):
        Outbox(metadata=metadata)


def test_the_schema_of_the_applications_metadata_is_that_of_the_tables() -> None:
    metadata = MetaData(schema="app")
    outbox = Outbox(metadata=metadata)
    assert outbox.schema == outbox.tables.hot.schema == outbox.tables.bell.schema == "app"
    assert Inbox(metadata=metadata).schema == "app"
    assert Outbox("other", metadata=metadata, schema="own").schema == "own"
    for again in (Outbox, Inbox):
        with pytest.raises(ConfigurationError, match="already"):
            again(metadata=metadata)


def test_the_ddl_makes_the_tables_and_may_run_twice(connection: sqlite3.Connection) -> None:
    outbox = Outbox("shop", create_tables=False)
    connection.executescript(outbox.ddl())
    connection.executescript(outbox.ddl("sqlite"))
    outbox.add(connection, "orders", b"1", idempotency_key="a")
    assert rows(connection, outbox) == [(b"1",)]
    with pytest.raises(ConfigurationError, match="'oracle9'"):
        outbox.ddl("oracle9")


@pytest.mark.parametrize(
    ("dialect", "collation"),
    [("mysql", "utf8mb4_0900_bin"), ("mariadb", "utf8mb4_nopad_bin"), ("mysql+pymysql", "0900")],
)
def test_the_ddl_of_mysql_has_the_indexes_within_the_tables(dialect: str, collation: str) -> None:
    ddl = Outbox().ddl(dialect).replace("`", "")
    assert "CREATE INDEX" not in ddl
    assert "INDEX postroom_outbox_by_slot (slot, position)\n)ENGINE=InnoDB;" in ddl
    assert "INDEX postroom_parked_by_key (slot, topic, key, position)" in ddl
    assert collation in ddl
    assert ddl.count("CREATE TABLE IF NOT EXISTS") == len(Outbox().tables.all())


def test_the_ddl_of_postgresql_has_the_bell() -> None:
    ddl = Outbox(schema="messaging").ddl("postgresql")
    assert "CREATE SEQUENCE IF NOT EXISTS messaging.postroom_bell START WITH 0 MINVALUE -9223372036854775808" in ddl
    assert "CREATE INDEX IF NOT EXISTS postroom_outbox_by_slot ON messaging.postroom_outbox (slot, position)" in ddl
    assert "bell" not in Outbox().ddl("sqlite") + Outbox().ddl("mysql")


def test_there_is_no_ddl_for_databases_that_cannot_be_written_to() -> None:
    with pytest.raises(ConfigurationError, match="'oracle'"):
        Outbox().ddl("oracle")


async def test_tables_can_be_created_through_whatever_is_at_hand(tmp_path: Any, connection: sqlite3.Connection) -> None:
    outbox = Outbox(create_tables=False)
    outbox.create_tables(connection)
    outbox.add(connection, "orders")
    engine = create_engine(f"sqlite:///{tmp_path}/one.db")
    outbox.create_tables(engine)
    with engine.begin() as transaction:
        outbox.create_tables(transaction)
        outbox.add(transaction, "orders")
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/two.db")
    await outbox.create_tables_async(async_engine)
    async with async_engine.begin() as async_connection:
        await outbox.create_tables_async(async_connection)
        await outbox.add_async(async_connection, "orders")
    async with aiosqlite.connect(f"{tmp_path}/three.db") as raw:
        await outbox.create_tables_async(raw)
        await outbox.add_async(raw, "orders")
    with pytest.raises(UnsupportedConnection, match=r"await outbox.create_tables_async"):
        outbox.create_tables(async_engine)
    engine.dispose()
    await async_engine.dispose()


def test_a_schema_holds_the_tables(connection: sqlite3.Connection) -> None:
    connection.execute("ATTACH ':memory:' AS side")
    outbox = Outbox(schema="side")
    outbox.add(connection, "orders", b"1")
    assert connection.execute("SELECT payload FROM side.postroom_outbox").fetchall() == [(b"1",)]


def test_tables_that_were_there_and_are_gone_are_made_again() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"1")
    outbox.tables.metadata.drop_all(engine)
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"2")
        assert connection.scalars(select(outbox.tables.hot.c.payload)).all() == [b"2"]
    engine.dispose()


def test_an_error_about_another_table_is_passed_on(connection: sqlite3.Connection) -> None:
    outbox = Outbox()
    outbox.create_tables(connection)
    connection.execute("CREATE TABLE audit (id)")
    connection.execute(
        "CREATE TRIGGER watch AFTER INSERT ON postroom_outbox BEGIN INSERT INTO audit VALUES (new.id); END"
    )
    connection.execute("DROP TABLE audit")
    with pytest.raises(sqlite3.OperationalError, match="audit"):
        outbox.add(connection, "orders")


# --- which connections


def test_an_unknown_object_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedConnection, match=r"object is no connection.*sqlite3 connection.*aiosqlite connection"
    ):
        Outbox().add(object(), "orders")
    with pytest.raises(UnsupportedConnection, match="NoneType"):
        Outbox().add(None, "orders")


async def test_an_engine_is_answered_with_how_to_begin() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(UnsupportedConnection, match=r"engine.begin"):
        Outbox().add(engine, "orders")
    async_engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(UnsupportedConnection, match=r"engine.begin"):
        await Outbox().add_async(async_engine, "orders")


async def test_each_colour_of_add_names_the_other(connection: sqlite3.Connection) -> None:
    with pytest.raises(UnsupportedConnection, match=r"sqlite3 connection is synchronous: use `outbox.add\("):
        await Outbox().add_async(connection, "orders")
    with pytest.raises(UnsupportedConnection, match=r"sqlite3 connection is synchronous: use `outbox.add\("):
        await Outbox().add_many_async(connection, [])
    async with aiosqlite.connect(":memory:") as other:
        with pytest.raises(UnsupportedConnection, match=r"is asynchronous: use `await outbox.add_async\("):
            Outbox().add(other, "orders")


def test_subclasses_are_recognised() -> None:
    class Mine(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Mine)
    outbox = Outbox()
    outbox.add(connection, "orders", b"1")
    assert rows(connection, outbox) == [(b"1",)]
    connection.close()


def instance_of(module: str, name: str, **members: Any) -> Any:
    return type(name, (), {"__module__": module, **members})()


def test_pools_are_answered_with_what_to_hand_over() -> None:
    for module, name in (("psycopg_pool.pool", "ConnectionPool"), ("asyncpg.pool", "Pool")):
        with pytest.raises(UnsupportedConnection, match="hand over that one, within its transaction"):
            Outbox().add(instance_of(module, name), "orders")


def test_a_connection_of_psycopg2_is_answered_with_what_to_use_instead() -> None:
    connection = instance_of("psycopg2.extensions", "connection")
    with pytest.raises(UnsupportedConnection, match=r"psycopg2 connection.*`outbox.add\(.*psycopg 3"):
        Outbox().add(connection, "orders")
    with pytest.raises(UnsupportedConnection, match=r"`inbox.first_time\(.*psycopg 3"):
        Inbox().first_time(connection, "1")


def test_mysqlclient_must_not_autocommit_for_it_does_not_tell_whether_it_is_in_a_transaction() -> None:
    connection = instance_of("MySQLdb.connections", "Connection", get_autocommit=lambda self: True)
    with pytest.raises(NoTransactionError, match="autocommit=False"):
        Outbox().add(connection, "orders")


# --- no transaction


@pytest.mark.parametrize(
    ("in_transaction", "isolation_level", "autocommit", "expected"),
    [
        (False, "", -1, False),
        (False, None, -1, True),
        (True, None, -1, False),
        (False, "", True, True),
        (True, "", True, False),
        (False, None, False, False),
    ],
)
def test_whether_a_sqlite3_connection_autocommits(
    in_transaction: bool, isolation_level: str | None, autocommit: bool | int, expected: bool
) -> None:
    """Python 3.12 added `autocommit`; earlier versions do not have it."""
    connection = SimpleNamespace(in_transaction=in_transaction, isolation_level=isolation_level, autocommit=autocommit)
    assert would_autocommit(connection) is expected
    if autocommit == -1:
        del connection.autocommit
        assert would_autocommit(connection) is expected


def test_an_engine_in_autocommit_mode_is_refused() -> None:
    engine = create_engine("sqlite://", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
        Outbox().add(connection, "orders")
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        Outbox().add(connection, "orders")
    engine.dispose()


def test_a_sqlite3_connection_told_to_autocommit_behind_sqlalchemys_back_is_refused() -> None:
    engine = create_engine("sqlite://")
    event.listen(engine, "connect", lambda connection, record: setattr(connection, "isolation_level", None))
    with engine.begin() as connection, pytest.raises(NoTransactionError):
        Outbox().add(connection, "orders")
    with engine.begin() as connection:
        connection.execute(text("BEGIN"))
        Outbox().add(connection, "orders")
    engine.dispose()


def test_a_fresh_connection_begins_by_itself() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    outbox = Outbox()
    outbox.create_tables(engine)
    with engine.connect() as connection:
        outbox.add(connection, "orders", b"undone")
    with engine.connect() as connection:
        outbox.add(connection, "orders", b"kept")
        connection.commit()
    with engine.connect() as connection:
        assert connection.scalars(select(outbox.tables.hot.c.payload)).all() == [b"kept"]
    engine.dispose()


# --- how it is written


def test_a_batch_costs_one_insert_per_table() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    outbox = Outbox()
    outbox.create_tables(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2].split("(")[0].strip()))
    with engine.begin() as connection:
        outbox.add_many(
            connection,
            [Message(topic="orders", delay=number % 2 or None) for number in range(10)],
        )
    assert statements == ["INSERT INTO postroom_outbox", "INSERT INTO postroom_later"]
    engine.dispose()


def test_nothing_is_read_before_the_first_write() -> None:
    """A SQLite transaction that begins by reading cannot wait for another writer."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    outbox = Outbox(order="strict")
    outbox.create_tables(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0]))
    with engine.begin() as connection:
        outbox.add(connection, Message(topic="orders", key="a", idempotency_key="x"))
    assert statements == ["INSERT", "SELECT", "INSERT", "SELECT", "INSERT", "INSERT"]
    engine.dispose()


def test_keys_and_counters_are_taken_in_sorted_order(connection: sqlite3.Connection) -> None:
    seen: list[str] = []
    outbox = Outbox(order="strict")
    outbox.create_tables(connection)
    connection.set_trace_callback(seen.append)
    outbox.add_many(connection, [Message(topic="t", key=name, idempotency_key=name) for name in ("c", "a", "b")])
    claims = [line for line in seen if line.startswith("INSERT INTO postroom_dedupe")][:3]
    counts = [line for line in seen if line.startswith("INSERT INTO postroom_counters")]
    assert [line.split("VALUES (")[1][:3] for line in claims] == ["'a'", "'b'", "'c'"]
    assert [line.split("VALUES (")[1][:8] for line in counts] == ["'t', 'a'", "'t', 'b'", "'t', 'c'"]


@pytest.mark.parametrize(("is_mariadb", "new"), [(True, "VALUES({})"), (False, "new.{}")])
def test_mysql_sets_the_time_of_a_claim_after_what_depends_on_it(is_mariadb: bool, new: str) -> None:
    claim = Statements(Outbox().tables, dialect_named("mysql"), clocked=False).claim
    ((text, _),) = executions(Step(claim, [{"key": "k", "message_id": "m", "window": 60.0}]), flavour(is_mariadb))
    holder, end = text.partition(" ON DUPLICATE KEY UPDATE ")[2].split(", expires_at = ")
    table = "postroom_dedupe"
    over = f"if({table}.expires_at <= (UTC_TIMESTAMP(6)), "
    assert holder == f"message_id = {over}{new.format('message_id')}, {table}.message_id)"
    assert end == f"{over}{new.format('expires_at')}, {table}.expires_at)"
    assert "IGNORE" not in text


@pytest.mark.parametrize("is_mariadb", [True, False])
def test_several_rows_go_into_one_statement_unless_it_grows_too_long(is_mariadb: bool) -> None:
    statements = Statements(Outbox().tables, dialect_named("mysql"), clocked=True)
    times = {"now": datetime(2030, 1, 1, tzinfo=UTC), "until": datetime(2031, 1, 1, tzinfo=UTC)}
    step = Step(statements.claim, [{"key": f"{n}", "message_id": "m", **times} for n in range(600)])
    found = list(executions(step, flavour(is_mariadb)))
    assert [text.count("(%s, %s, %s)") for text, _ in found] == [250, 250, 100]
    now, until = datetime(2030, 1, 1), datetime(2031, 1, 1)
    assert [arguments and arguments[-5:] for _, arguments in found] == [
        (key, "m", until, now, now) for key in ("249", "499", "599")
    ]
    step = Step(statements.count, [{"topic": "t" * 400_000, "key": "", "sequence": 1, "generation": 1}] * 5)
    assert [text.count("(%s, %s, %s, %s)") for text, _ in executions(step, flavour(is_mariadb))] == [2, 2, 1]


def test_a_counter_made_anew_has_a_later_generation(connection: sqlite3.Connection) -> None:
    clock = FakeClock()
    outbox = Outbox(order="strict", clock=clock)
    first = outbox.add(connection, "orders", key="a")
    clock.advance(1)
    second = outbox.add(connection, "orders", key="a")
    connection.execute("DELETE FROM postroom_counters")
    third = outbox.add(connection, "orders", key="a")
    assert (first.sequence, second.sequence, third.sequence) == (1, 2, 1)
    assert first.generation == second.generation
    assert third.generation == int(clock.now().timestamp() * 1000)


def test_a_process_forked_after_the_outbox_was_made_can_write(tmp_path: Any) -> None:
    outbox = Outbox()
    path = tmp_path / "app.db"
    if os.fork() == 0:
        try:
            with sqlite3.connect(path) as connection:
                outbox.add(connection, "orders", b"child")
            connection.close()
        finally:
            os._exit(0)
    os.wait()
    connection = sqlite3.connect(path)
    outbox.add(connection, "orders", b"parent")
    assert rows(connection, outbox) == [(b"child",), (b"parent",)]
    connection.close()


def test_the_tables_are_complete() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.add(connection, "orders")
    inspector = inspect(engine)
    assert set(inspector.get_table_names()) >= {table.name for table in outbox.tables.all()}
    assert [index["name"] for index in inspector.get_indexes("postroom_outbox")] == ["postroom_outbox_by_slot"]
    engine.dispose()
