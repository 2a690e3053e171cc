"""What the doctor finds in each database, and what he says when he may not look."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import Connection

from postroom import Desk, Outbox, Relay
from postroom.ports import Finding, Store
from postroom.relay.wiring import store_for
from postroom.stores import mysql_doctor, postgresql_doctor, sql_doctor, sqlite_doctor
from postroom.testing import FakeClock

from ..conftest import Database

DRIVERS = {"sqlite": "sqlite", "postgresql-15": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
SERVERS = ["postgresql-15", "mariadb"]


class Outpost:
    """An outbox in a database, a store on it, and a connection of somebody else's."""

    def __init__(self, kind: str, url: str, store: Store, other: Connection) -> None:
        self.kind, self.url, self.store, self.other = kind, url, store, other

    async def find(self, name: str) -> Finding:
        (found,) = [finding for finding in await self.store.diagnose() if finding.name == name]
        return found

    def run(self, sql: str) -> None:
        self.other.execute(text(sql))
        self.other.commit()


@pytest.fixture(params=["sqlite", *SERVERS])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest_asyncio.fixture
async def outpost(kind: str, tmp_path: Path, empty_database: Database) -> AsyncIterator[Outpost]:
    url = f"sqlite:///{tmp_path / 'app.db'}" if kind == "sqlite" else empty_database(kind)
    engine = create_engine(make_url(url).set(drivername=DRIVERS[kind]))
    store = store_for(url, Outbox())
    await store.open()
    with closing(engine.connect()) as other:
        yield Outpost(kind, url, store, other)
    engine.dispose()
    await store.close()


on_servers = pytest.mark.parametrize("kind", SERVERS, indirect=True)
on_postgresql = pytest.mark.parametrize("kind", SERVERS[:1], indirect=True)
on_mariadb = pytest.mark.parametrize("kind", SERVERS[1:], indirect=True)
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


async def test_a_fresh_outbox_is_well(outpost: Outpost) -> None:
    findings = await outpost.store.diagnose()
    assert [finding for finding in findings if finding.verdict != "ok"] == []
    assert {"server", "tables", "indexes", "slots", "relays", "leases", "pending"} <= {f.name for f in findings}


async def test_an_outbox_at_work_is_well(outpost: Outpost) -> None:
    with outpost.other.begin():
        id = Outbox().add(outpost.other, "orders", {}, key="a")
    async with Relay(outpost.url, lambda message: None) as relay, Desk(outpost.url) as desk:
        await relay.delivered(id, timeout=60)
        findings = await desk.doctor()
    assert not [finding for finding in findings if finding.verdict == "problem"]
    assert "1 relay is alive" in [finding.seen for finding in findings if finding.name == "relays"]


async def test_a_missing_index_is_a_problem_that_the_remedy_mends(outpost: Outpost) -> None:
    table = " ON postroom_outbox" if outpost.kind == "mariadb" else ""
    outpost.run(f"DROP INDEX postroom_outbox_by_slot{table}")
    found = await outpost.find("indexes")
    assert found.verdict == "problem"
    assert "postroom_outbox_by_slot" in found.seen
    assert found.remedy is not None
    outpost.run(found.remedy.removeprefix("run "))
    assert (await outpost.find("indexes")).verdict == "ok"


async def test_an_index_under_another_name_is_as_good(outpost: Outpost) -> None:
    table = " ON postroom_outbox" if outpost.kind == "mariadb" else ""
    outpost.run(f"DROP INDEX postroom_outbox_by_slot{table}")
    outpost.run("CREATE INDEX ours ON postroom_outbox (slot, position)")
    assert (await outpost.find("indexes")).verdict == "ok"


@pytest.mark.parametrize(("slot", "words"), [(64, "nobody reads"), (-1, "nobody reads"), (3, "not 24")])
async def test_a_row_in_the_wrong_slot_is_a_problem(outpost: Outpost, slot: int, words: str) -> None:
    Outbox().add(outpost.other, "orders", {}, key="order-2")
    outpost.other.commit()
    assert (await outpost.find("slots")).verdict == "ok"
    outpost.run(f"UPDATE postroom_outbox SET slot = {slot}")
    found = await outpost.find("slots")
    assert (found.verdict, words in found.seen) == ("problem", True), found


async def test_messages_without_a_key_may_be_in_any_slot(outpost: Outpost) -> None:
    Outbox().add(outpost.other, "orders", {})
    outpost.run("UPDATE postroom_outbox SET slot = 63 - slot")
    assert (await outpost.find("slots")).verdict == "ok"


async def test_what_waits_while_no_relay_is_alive_is_a_problem(outpost: Outpost) -> None:
    Outbox().add(outpost.other, "orders", {}, key="a")
    outpost.other.commit()
    found = await outpost.find("relays")
    assert (found.verdict, "1 message waits" in found.seen) == ("problem", True)


async def test_missing_tables_are_a_problem_for_the_desk(outpost: Outpost) -> None:
    outpost.run("DROP TABLE postroom_holds")
    async with Desk(outpost.url) as desk:
        [found] = await desk.doctor()
    assert (found.name, found.verdict, "postroom_holds" in found.seen) == ("tables", "problem", True)


@on_servers
async def test_an_old_transaction_is_a_warning(outpost: Outpost, monkeypatch: pytest.MonkeyPatch) -> None:
    outpost.other.execute(text("INSERT INTO postroom_meta VALUES ('x', 'y')"))
    assert (await outpost.find("transactions")).verdict == "ok"
    for module in (postgresql_doctor, mysql_doctor):
        monkeypatch.setattr(module, "OLD", -1.0)
    found = await outpost.find("transactions")
    assert (found.verdict, "open for" in found.seen) == ("warning", True)
    assert found.remedy is not None
    assert found.remedy.startswith("end it: ")


@on_servers
async def test_clocks_that_differ_are_a_warning(outpost: Outpost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await outpost.find("clock")).verdict == "ok"
    monkeypatch.setattr(sql_doctor, "SYSTEM_CLOCK", FakeClock())
    found = await outpost.find("clock")
    assert (found.verdict, "ours" in found.seen) == ("warning", True)


@on_servers
async def test_servers_too_old_are_a_warning(outpost: Outpost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_doctor, "OLDEST_SUPPORTED", 990_000)
    monkeypatch.setattr(mysql_doctor, "OLDEST_SUPPORTED", {"MariaDB": (99, 0)})
    found = await outpost.find("server")
    assert (found.verdict, "not tested" in found.seen) == ("warning", True)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("10.11.6-MariaDB-1", (10, 11)), ("5.5.5-10.6.12-MariaDB", (10, 6)), ("8.4.0", (8, 4)), ("odd", ())],
)
def test_the_version_of_mysql_is_read(version: str, numbers: tuple[int, ...]) -> None:
    assert mysql_doctor.numbers_of(version) == numbers


@on_postgresql
async def test_a_table_that_is_never_vacuumed_is_a_warning(outpost: Outpost) -> None:
    outpost.run("ALTER TABLE postroom_outbox SET (autovacuum_enabled = false)")
    assert (await outpost.find("bloat")).verdict == "warning"


@on_postgresql
async def test_an_index_that_was_not_finished_is_a_problem(outpost: Outpost) -> None:
    outpost.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'postroom_outbox_by_slot'::regclass")
    found = await outpost.find("index validity")
    assert (found.verdict, "postroom_outbox_by_slot" in found.seen) == ("problem", True)


@on_postgresql
async def test_a_missing_bell_and_a_relay_that_polls_are_found(outpost: Outpost) -> None:
    outpost.run(
        "INSERT INTO postroom_relays VALUES ('deaf', 'here', 1, now(), now(), now() + interval '1 h', 0, 'polling')"
    )
    found = await outpost.find("doorbell")
    assert (found.verdict, "deaf" in found.seen) == ("warning", True)
    outpost.run("DROP SEQUENCE postroom_bell")
    assert (await outpost.find("doorbell")).verdict == "problem"


async def test_a_pooler_in_between_is_told(empty_database: Database) -> None:
    for server, words in (("pgbouncer", "through one"), ("postgresql-15", "none in between")):
        store = store_for(empty_database(server), Outbox())
        await store.open()
        assert [words in finding.seen for finding in await store.diagnose() if finding.name == "pooler"] == [True]
        await store.close()


@on_mariadb
async def test_a_small_packet_is_a_warning(outpost: Outpost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_doctor, "SMALL_PACKET", 2**40)
    assert (await outpost.find("packet")).verdict == "warning"


@on_servers
async def test_what_a_role_may_not_see_is_a_warning_and_no_error(
    outpost: Outpost, outsider: Callable[[str], str]
) -> None:
    store = store_for(outsider(outpost.url), Outbox())
    outpost.other.execute(text("SELECT 1"))  # a session of somebody else's, in a transaction
    await store.open(create_tables=False)
    try:
        found = {finding.name: finding for finding in await store.diagnose()}
    finally:
        await store.close()
    assert (found["transactions"].verdict, "may not" in found["transactions"].seen) == ("warning", True)
    assert not [finding for finding in found.values() if finding.verdict == "problem"]


@pytest.fixture
def outsider(outpost: Outpost) -> Iterator[Callable[[str], str]]:
    """Somebody who may read our tables, and nothing else."""
    name = f"outsider_{secrets.token_hex(4)}"
    database = make_url(outpost.url).database
    grants = {
        "postgresql-15": [
            f"CREATE ROLE {name} LOGIN",
            f"GRANT USAGE ON SCHEMA public TO {name}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        ],
        "mariadb": [f"CREATE USER {name}", f"GRANT SELECT ON `{database}`.* TO {name}"],
    }
    drops = {"postgresql-15": [f"DROP OWNED BY {name}", f"DROP ROLE {name}"], "mariadb": [f"DROP USER {name}"]}
    for sql in grants[outpost.kind]:
        outpost.run(sql)
    yield lambda url: make_url(url).set(username=name).render_as_string(hide_password=False)
    outpost.other.rollback()
    for sql in drops[outpost.kind]:
        outpost.run(sql)


@on_sqlite
async def test_a_large_file_is_not_read_through(outpost: Outpost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "whole" in (await outpost.find("integrity")).seen
    monkeypatch.setattr(sqlite_doctor, "LARGE", 0)
    assert "not looked at" in (await outpost.find("integrity")).seen
