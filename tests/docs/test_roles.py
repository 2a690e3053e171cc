"""The roles of `docs/how-to/roles.md`, created from the page: each can do its work, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from postroom import (
    Desk,
    DestinationUnavailable,
    Inbox,
    Message,
    MessageRejected,
    Outbox,
    Received,
    Relay,
    StoreError,
    TablesMissing,
)
from postroom.ports import Store
from postroom.relay.wiring import store_for
from postroom.stores.inbox_schema import define_inbox_tables
from postroom.stores.schema import bell_channel, define_tables

from ..conftest import Database
from .clients import DRIVERS, SERVERS, SqlError, run_sql
from .markdown import ROOT, blocks

PAGE = (ROOT / "docs/how-to/roles.md").read_text(encoding="utf-8")
WRITE_FROM_SQL = (ROOT / "docs/how-to/write-from-sql.md").read_text(encoding="utf-8")
ROLES = ("postroom_owner", "postroom_relay", "postroom_operator", "shop", "billing")
TABLES = [table.name for table in (*define_tables().all(), *define_inbox_tables().all())]


@dataclass(frozen=True, slots=True)
class Place:
    """A database with the roles of the page, under names of their own: all databases of a server share them."""

    kind: str
    administrator: str
    mark: str

    def sql(self, number: int) -> str:
        text = [block.text for block in blocks(PAGE) if block.info == f"sql {self.kind}"][number]
        return self.named(text.replace("shop.", f"`{make_url(self.administrator).database}`."))

    def named(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(ROLES)})\b", rf"\1_{self.mark}", text)

    def url(self, role: str) -> str:
        return make_url(self.administrator).set(username=f"{role}_{self.mark}").render_as_string(hide_password=False)

    def postroom(self, role: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "postroom", "--store", self.url(role), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def may(self, role: str, sql: str) -> bool:
        try:
            run_sql(self.url(role), sql)
        except SqlError as error:
            if any(words in str(error) for words in ("denied", "must be owner")):
                return False
            raise
        return True

    def drop_roles(self) -> None:
        for role in ROLES:
            name = f"{role}_{self.mark}"
            owned = f"DROP OWNED BY {name}; DROP ROLE {name};"
            run_sql(self.administrator, owned if self.kind == "postgresql" else f"DROP USER {name};")


@pytest.fixture(params=sorted(SERVERS))
def place(request: pytest.FixtureRequest, empty_database: Database) -> Iterator[Place]:
    place = Place(request.param, empty_database(SERVERS[request.param]), secrets.token_hex(3))
    run_sql(place.administrator, "CREATE TABLE orders (id integer);")
    run_sql(place.administrator, place.sql(0))
    try:
        granter = place.url("postroom_owner") if place.kind == "postgresql" else place.administrator
        place.postroom("postroom_owner", "init")
        run_sql(granter, place.sql(1))
        place.postroom("postroom_owner", "inbox", "init")
        run_sql(granter, place.sql(2))
        yield place
    finally:
        place.drop_roles()


def write(place: Place) -> None:
    """With everything that needs a right of its own."""
    engine = create_engine(make_url(place.url("shop")).set(drivername=DRIVERS[place.kind]))
    plain, strict = Outbox(create_tables=False, max_pending=1000), Outbox(create_tables=False, order="strict")
    for _ in range(2):
        with engine.begin() as connection:
            plain.add(connection, "orders", {}, key="a", idempotency_key="once")
            plain.add(connection, "orders", {}, delay=0)
            strict.add(connection, "ledger", {}, key="b")
            plain.add(connection, "refused", {}, key="c")
            plain.add(connection, "refused", {})
            plain.add(connection, "mail", {}, key="d")
    engine.dispose()


class Destination:
    def __init__(self) -> None:
        self.delivered: list[Message] = []
        self.is_up = True
        self.refuses = True

    def __call__(self, message: Message) -> None:
        if not self.is_up:
            raise DestinationUnavailable("down")
        if message.topic == "refused" and self.refuses:
            raise MessageRejected("no")
        self.delivered.append(message)


def relay_of(place: Place, destination: Destination, *, create_tables: bool = False) -> Relay:
    settings: dict[str, Any] = {
        "lease_ttl": "3s",
        "retry": "steps 0s",
        "retention": "1d",
        "breaker_initial": "10ms",
        "breaker_cap": "10ms",
    }
    return Relay(place.url("postroom_relay"), destination, create_tables=create_tables, **settings)


async def test_each_role_can_do_its_work(place: Place) -> None:
    write(place)
    destination = Destination()
    report = await relay_of(place, destination).drain()
    assert (report.delivered, report.dead, report.held) == (7, 3, 1)
    async with Desk(place.url("postroom_operator")) as desk:
        status = await desk.status()
        assert (status.counts["dead"], status.holds) == (3, 1)
        dead = [entry.message.id for entry in await desk.list(state="dead")]
        assert (await desk.show(dead[0])).state == "dead"
        assert len(await desk.holds()) == 1
        assert await desk.revive(topic="refused", key="c") == 1
        assert await desk.discard(all=True) == 2
        assert await desk.replay(topic="orders") == 3
        assert await desk.replay(topic="ledger", new_id=True) == 2
    destination.refuses = False
    report = await relay_of(place, destination).drain()
    assert (report.delivered, report.dead, report.held, report.pending) == (7, 0, 0, 0)
    async with Desk(place.url("postroom_operator")) as desk:
        assert await desk.clean(retention="0s") == 14
        findings = await desk.doctor()
    assert not [finding for finding in findings if finding.verdict == "problem"]


async def test_a_relay_can_wait_out_an_outage_and_clean_up(place: Place) -> None:
    write(place)
    destination = Destination()
    destination.is_up = False
    report = await relay_of(place, destination).drain()
    assert (report.delivered, report.dead, report.pending) == (0, 0, 11)
    destination.is_up = True
    report = await relay_of(place, destination, create_tables=True).drain()  # they are there, so nothing is created
    assert (report.delivered, report.dead, report.held) == (7, 3, 1)
    store: Store = store_for(place.url("postroom_relay"), Outbox())
    await store.open(create_tables=False)
    try:
        assert await store.clean(retention=0, limit=1000) > 0
    finally:
        await store.close()


def test_a_consumer_can_handle_and_forget_and_an_operator_can_look_after_it(place: Place) -> None:
    inbox = Inbox(create_tables=False, window=0.000_001)
    engine = create_engine(make_url(place.url("billing")).set(drivername=DRIVERS[place.kind]))
    for number in (1, 2):
        message = Received(id=f"{number}", topic="ledger", key="b", sequence=number, generation=1)
        for is_first in (True, False):
            with engine.begin() as connection:
                assert inbox.first_time(connection, message.id) is is_first
                assert inbox.in_turn(connection, message) is is_first
    [consumer] = json.loads(place.postroom("postroom_operator", "inbox", "status", "--json"))["consumers"]
    assert (consumer["messages"], consumer["keys"]) == (2, 1)
    assert place.may("billing", "SELECT sent FROM postroom_inbox FOR UPDATE; UPDATE postroom_inbox SET sent = '[]';")
    with engine.begin() as connection:
        assert inbox.clean(connection, limit=1) == 1
    engine.dispose()
    assert json.loads(place.postroom("postroom_operator", "inbox", "clean", "--window", "1ms", "--json")) == {
        "forgotten": 1
    }


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
async def test_the_application_can_ring_and_the_relay_can_hear(place: Place) -> None:
    async with relay_of(place, Destination()), Desk(place.url("postroom_operator")) as desk, asyncio.timeout(60):
        while [relay["woken_by"] for relay in (await desk.status()).relays] != ["doorbell"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert place.may("postroom_relay", "SELECT setval('postroom_bell', -1);")
    with psycopg.connect(place.administrator, autocommit=True) as listener:
        listener.execute(f"LISTEN {bell_channel(define_tables())}".encode())
        write(place)
        assert list(listener.notifies(timeout=60, stop_after=1))
    (by_hand,) = [block.text for block in blocks(WRITE_FROM_SQL) if "pg_notify" in block.text]
    assert place.may("shop", by_hand)
    assert not place.may("shop", "SELECT setval('postroom_bell', 0);")


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("loss", ["REVOKE SELECT ON SEQUENCE postroom_bell FROM shop", "DROP SEQUENCE postroom_bell"])
def test_an_application_that_may_not_ring_any_more_is_told_so_once(place: Place, loss: str) -> None:
    """Its connection knew a bell. The error says what to do, and the transaction that is tried again does not ring."""
    outbox = Outbox(create_tables=False)
    engine = create_engine(make_url(place.url("shop")).set(drivername=DRIVERS[place.kind]))

    def add() -> None:
        with engine.begin() as connection:
            outbox.add(connection, "orders", {})

    add()
    run_sql(place.administrator, place.named(f"{loss};"))
    with pytest.raises(StoreError, match=r"the doorbell of outbox .* try again") as caught:
        add()
    assert not isinstance(caught.value, TablesMissing)
    add()
    engine.dispose()


def test_the_application_can_only_add(place: Place) -> None:
    for sql in (
        "SELECT payload FROM postroom_outbox",
        "SELECT id FROM postroom_dead",
        "UPDATE postroom_outbox SET topic = 'x'",
        "DELETE FROM postroom_outbox",
        "DELETE FROM postroom_dedupe",
        "DELETE FROM postroom_counters",
        "SELECT * FROM postroom_leases",
        "UPDATE postroom_meta SET value = '9'",
        "CREATE TABLE other (id integer)",
        "DROP TABLE postroom_outbox",
    ):
        assert not place.may("shop", f"{sql};"), sql


def test_a_relay_can_neither_make_tables_nor_see_others(place: Place) -> None:
    for sql in ("CREATE TABLE other (id integer)", "DROP TABLE postroom_dead", "SELECT * FROM orders"):
        assert not place.may("postroom_relay", f"{sql};"), sql
    for sql in ("UPDATE postroom_counters SET sequence = 0", "UPDATE postroom_archive SET topic = 'x'"):
        assert not place.may("postroom_relay", f"{sql};"), sql


def test_a_consumer_can_only_handle(place: Place) -> None:
    for sql in (
        "DELETE FROM postroom_inbox_marks",
        "SELECT id FROM postroom_outbox",
        "INSERT INTO postroom_outbox (id) VALUES ('1')",
        "CREATE TABLE other (id integer)",
        "DROP TABLE postroom_inbox",
        "SELECT * FROM orders",
    ):
        assert not place.may("billing", f"{sql};"), sql
    for role in ("shop", "postroom_relay"):
        assert not place.may(role, "SELECT message_id FROM postroom_inbox;"), role


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_consumer_cannot_change_what_it_has_handled_and_when(place: Place) -> None:
    for column in ("message_id", "token"):
        assert not place.may("billing", f"UPDATE postroom_inbox SET {column} = 'x';"), column
    assert not place.may("billing", "UPDATE postroom_inbox SET received_at = now();")
    assert not place.may("billing", "UPDATE postroom_inbox_marks SET topic = 'x';")


def test_an_operator_can_neither_take_slots_nor_change_what_is_pending(place: Place) -> None:
    for sql in (
        "UPDATE postroom_leases SET owner = 'me'",
        "DELETE FROM postroom_outbox",
        "UPDATE postroom_outbox SET attempts = 0",
        "DELETE FROM postroom_parked",
        "DELETE FROM postroom_later",
        "DELETE FROM postroom_holds",
        "UPDATE postroom_meta SET value = '9'",
        "UPDATE postroom_inbox_marks SET sequence = 0",
        "DELETE FROM postroom_inbox_marks",
        "CREATE TABLE other (id integer)",
        "SELECT * FROM orders",
    ):
        assert not place.may("postroom_operator", f"{sql};"), sql


def test_the_page_grants_something_on_every_table() -> None:
    for kind in SERVERS:
        granted = " ".join(block.text for block in blocks(PAGE) if block.info == f"sql {kind}")
        assert not [name for name in TABLES if name not in granted]
