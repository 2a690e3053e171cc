"""What `docs/how-to/write-from-sql.md` shows is run as it stands, by `psql` and `mariadb`, and delivered by a relay."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5

import pytest
from sqlalchemy import create_engine, make_url, text

from postroom import Message, Outbox, Relay
from postroom.message import slot_of
from postroom.stores.schema import bell_channel

from ..conftest import Database
from .clients import DRIVERS, SERVERS, run_sql
from .markdown import ROOT, Block, blocks

PAGE = (ROOT / "docs/how-to/write-from-sql.md").read_text(encoding="utf-8")
EXPRESSIONS = {
    "postgresql": "get_byte(decode(md5({}), 'hex'), 0) % 64",
    "mysql": "conv(left(md5({}), 2), 16, 10) % 64",
}
ODD = [
    "order-1",
    "O'Brien",
    '"',
    "\\",
    "\\'",
    "ключ",
    "键",
    "café",
    "cafe\u0301",
    "🙂",
    "👩‍👩‍👧",
    " ",
    "a ",
    "A",
    "%s",
    ":x",
    "\t",
    "\n",
]


def statements(kind: str) -> list[Block]:
    return [block for block in blocks(PAGE) if block.info == f"sql {kind}"]


def statement(kind: str, word: str) -> str:
    """The only block in which a word is."""
    (block,) = [block for block in statements(kind) if word in block.text]
    return block.text


@pytest.fixture(params=sorted(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(kind: str, empty_database: Database) -> str:
    url = make_url(empty_database(SERVERS[kind]))
    engine = create_engine(url.set(drivername=DRIVERS[kind]))
    Outbox().create_tables(engine)
    engine.dispose()
    return url.render_as_string(hide_password=False)


async def deliver(url: str) -> list[Message]:
    delivered: list[Message] = []
    report = await Relay(url, delivered.append).drain()
    assert (report.dead, report.held, report.retried) == (0, 0, 0)
    return delivered


def of_topic(messages: Sequence[Message], topic: str) -> list[Message]:
    return [message for message in messages if message.topic == topic]


async def test_the_pages_statements_run_and_what_they_write_is_delivered(url: str, kind: str) -> None:
    run_sql(url, "\n".join(block.text for block in statements(kind)))
    messages = await deliver(url)
    orders = of_topic(messages, "orders")
    first = next(message for message in orders if message.key == "order-1")
    assert (first.key, first.type, first.content_type) == ("order-1", "OrderPlaced", "application/json")
    assert (json.loads(first.payload), first.headers) == ({"id": 1, "total": 42}, {"source": "shop"})
    assert {message.key: json.loads(message.payload)["total"] for message in orders if message.type} == {
        "order-1": 42,
        "order-2": 10,
        "order-3": 20,
    }
    assert [message.payload for message in of_topic(messages, "visits")] == [b"\x00\xff"]
    (numbered,) = of_topic(messages, "ledger")
    assert (numbered.sequence, numbered.generation is not None) == (1, True)
    assert all(message.slot == slot_of(message.key, message.id) for message in messages if message.key)
    assert not of_topic(messages, "reminders")
    assert len({message.id for message in messages}) == len(messages)


async def test_a_keys_messages_are_delivered_in_the_order_they_were_written_in(url: str, kind: str) -> None:
    orders = statement(kind, "CREATE TABLE orders")
    trigger = statement(kind, "CREATE TRIGGER").replace("'order-'", "'customer-'").rpartition("INSERT INTO orders")[0]
    name = "'customer-' || NEW.id", "concat('customer-', NEW.id)"
    for text_of_key in name:
        trigger = trigger.replace(text_of_key, text_of_key.replace("NEW.id", "NEW.id % 3"))
    rows = "".join(f"INSERT INTO orders VALUES ({number}, 1);\n" for number in range(1, 61))
    run_sql(url, f"{orders}{trigger}{rows}")
    messages = await deliver(url)
    for remainder in range(3):
        ids = [json.loads(m.payload)["id"] for m in messages if m.key == f"customer-{remainder}"]
        assert ids == [number for number in range(1, 61) if number % 3 == remainder]


async def test_a_rolled_back_transaction_leaves_no_message(url: str, kind: str) -> None:
    run_sql(url, statement(kind, "CREATE TABLE orders"))
    run_sql(url, statement(kind, "INSERT INTO orders VALUES (1, 42)").replace("COMMIT", "ROLLBACK"))
    assert await deliver(url) == []


async def test_numbers_taken_by_many_sessions_are_dense_and_follow_the_positions(url: str, kind: str) -> None:
    sql = statement(kind, "INSERT INTO postroom_counters") * 10
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: run_sql(url, sql), range(4)))
    numbered = await deliver(url)
    assert [message.sequence for message in numbered] == list(range(1, 41))
    assert len({message.generation for message in numbered}) == 1


async def test_numbers_by_hand_and_from_python_are_one_sequence(url: str, kind: str) -> None:
    strict, engine = Outbox(order="strict"), create_engine(make_url(url).set(drivername=DRIVERS[kind]))
    for _ in range(2):
        run_sql(url, statement(kind, "INSERT INTO postroom_counters"))
        with engine.begin() as connection:
            strict.add(connection, "ledger", {}, key="account-1")
    engine.dispose()
    numbered = await deliver(url)
    assert [message.sequence for message in numbered] == [1, 2, 3, 4]
    assert len({message.generation for message in numbered}) == 1


async def test_an_idempotency_key_is_used_once_by_hand_and_from_python(url: str, kind: str) -> None:
    sql = statement(kind, "INSERT INTO postroom_dedupe")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: run_sql(url, sql), range(4)))
    engine = create_engine(make_url(url).set(drivername=DRIVERS[kind]))
    with engine.begin() as connection:
        again = Outbox().add(connection, "payments", {"id": 7}, key="customer-3", idempotency_key="payment-7")
    assert again.duplicate is True
    (only,) = await deliver(url)
    assert only.headers == {"postroom-idempotency-key": "payment-7"}
    with engine.begin() as connection:
        connection.execute(text("UPDATE postroom_dedupe SET expires_at = '2020-01-01 00:00:00'"))
    engine.dispose()
    run_sql(url, sql)
    assert len(await deliver(url)) == 1


async def test_a_message_for_later_is_due_at_its_time(url: str, kind: str) -> None:
    sql = statement(kind, "INSERT INTO postroom_later")
    setting = "SET NAMES utf8mb4; SET @key = 'order-1';\n" if kind == "mysql" else ""
    run_sql(url, setting + sql)
    assert await deliver(url) == []
    soon = sql.replace("interval '1 hour'", "interval '0 s'").replace("INTERVAL 1 HOUR", "INTERVAL 0 SECOND")
    run_sql(url, setting + soon)
    assert [message.topic for message in await deliver(url)] == ["reminders"]


def quoted(key: str, kind: str) -> str:
    key = key.replace("\\", "\\\\") if kind == "mysql" else key
    return "'{}'".format(key.replace("'", "''"))


def test_the_databases_compute_the_slots_that_python_computes(url: str, kind: str) -> None:
    expression = EXPRESSIONS[kind]
    assert expression.format("'order-1'") in PAGE
    assert f"For `order-1` it is {slot_of('order-1', '')}." in PAGE
    letters = random.Random(64)
    points = [*range(1, 0xD800), *range(0xE000, 0x110000)]
    keys = ODD + ["".join(map(chr, letters.choices(points, k=letters.randint(1, 30)))) for _ in range(500)]
    selects = [f"SELECT {number}, {expression.format(quoted(key, kind))};" for number, key in enumerate(keys)]
    found = run_sql(url, "SET NAMES utf8mb4;\n" * (kind == "mysql") + "\n".join(selects))
    assert [int(float(slot)) for _, slot in found] == [slot_of(key, "") for key in keys]


def test_postgresql_computes_the_slot_of_an_id_as_python_does(empty_database: Database) -> None:
    url = empty_database("postgresql-15")
    assert "get_byte(uuid_send(id), 15) % 64" in statement("postgresql", "'visits'")
    sql = "SELECT id, get_byte(uuid_send(id), 15) % 64 FROM generate_series(1, 300), gen_random_uuid() AS id;"
    found = run_sql(url, sql)
    assert found
    assert all(int(slot) == slot_of(None, id) for id, slot in found)


def test_messages_without_a_key_are_spread_over_the_slots(url: str, kind: str) -> None:
    found = run_sql(url, statement(kind, "'visits'") * 300 + "SELECT DISTINCT slot FROM postroom_outbox;")
    assert len(found) > 48
    assert all(0 <= int(slot) < 64 for (slot,) in found)


def test_the_doorbell_is_rung_by_hand_only_for_a_slot_whose_owner_sleeps(empty_database: Database) -> None:
    url, sql = make_url(empty_database("postgresql-15")), statement("postgresql", "pg_notify")
    outbox, engine = Outbox(), create_engine(url.set(drivername="postgresql+psycopg"))
    outbox.create_tables(engine)
    engine.dispose()
    listen, asleep = (
        f"LISTEN {bell_channel(outbox.tables)};\n",
        f"SELECT setval('postroom_bell', 1::bigint << {slot_of('order-1', '')});\n",
    )
    address = url.render_as_string(hide_password=False)
    assert not notified(run_sql(address, listen + sql))
    assert notified(run_sql(address, listen + asleep + sql)) == [f'"{slot_of("order-1", "")}"']


def notified(lines: list[list[str]]) -> list[str]:
    """The payloads of psql's `Asynchronous notification "…" with payload "…" received …`."""
    return [line.split("payload ")[1].split(" ")[0] for [line, *_] in lines if "notification" in line]


@pytest.mark.parametrize("schema", [None, "messaging"])
def test_the_channel_is_named_as_the_page_says(schema: str | None) -> None:
    place = f"{schema or ''}.postroom_"
    assert f"`'{place}'`" in PAGE
    assert bell_channel(Outbox(schema=schema).tables) == f"postroom_{md5(place.encode()).hexdigest()[:12]}"
