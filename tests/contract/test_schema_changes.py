"""Tables made by many at once, by SQL and by Alembic; and old and new code on the same tables."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, create_engine, make_url, text

from postroom import Desk, Outbox, Relay, SchemaMismatch
from postroom.message import SLOTS
from postroom.relay.wiring import store_for
from postroom.stores import schema, sql_setup

from ..conftest import Database
from ..docs.clients import run_sql

DRIVERS = {"sqlite": "sqlite", "postgresql-15": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
SERVERS = ["postgresql-15", "mariadb"]


@pytest.fixture(params=["sqlite", *SERVERS])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(kind: str, tmp_path: Path, empty_database: Database) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}" if kind == "sqlite" else empty_database(kind)


@pytest.fixture
def engine(kind: str, url: str) -> Iterator[Engine]:
    engine = create_engine(make_url(url).set(drivername=DRIVERS[kind]))
    yield engine
    engine.dispose()


on_servers = pytest.mark.parametrize("kind", SERVERS, indirect=True)


async def assert_it_works(url: str, engine: Engine) -> None:
    """A message goes through, and nothing is missing or there twice."""
    with engine.begin() as connection:
        Outbox().add(connection, "orders", {}, key="a")
    report = await Relay(url, lambda message: None).drain()
    assert report.delivered >= 1
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM postroom_leases")).scalar() == SLOTS
        assert connection.execute(text("SELECT count(*) FROM postroom_meta WHERE name = 'version'")).scalar() == 1
    async with Desk(url) as desk:
        assert {finding.name: finding.seen for finding in await desk.doctor() if finding.verdict == "problem"} == {}


# --- many at once


WRITER = """
import sys
from sqlalchemy import create_engine
from postroom import Outbox
engine = create_engine(sys.argv[1])
outbox = Outbox()
outbox.create_tables(engine)
with engine.begin() as connection:
    outbox.add(connection, "orders", {}, key="a")
"""


@on_servers
async def test_ten_processes_that_start_at_once_make_the_tables_once(url: str, kind: str, engine: Engine) -> None:
    program = [sys.executable, "-m", "postroom", "--store", url]
    writer = [sys.executable, "-c", WRITER, engine.url.render_as_string(hide_password=False)]
    commands = [[*program, "init"]] * 4 + [[*program, "drain", "--publisher", "memory:"]] * 3 + [writer] * 3
    processes = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in commands]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 10, "\n".join(outputs)
    await assert_it_works(url, engine)


async def test_stores_that_open_at_once_make_the_tables_once(url: str, engine: Engine) -> None:
    stores = [store_for(url, Outbox()) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()
    await assert_it_works(url, engine)


# --- as SQL


def printed_sql(dialect: str) -> str:
    command = [sys.executable, "-m", "postroom", "init", "--sql", "--dialect", dialect]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@on_servers
async def test_the_sql_that_init_prints_can_be_run_twice(url: str, kind: str, engine: Engine) -> None:
    sql = printed_sql({"postgresql-15": "postgresql", "mariadb": "mariadb"}[kind])
    run_sql(url, sql)
    run_sql(url, sql)
    await assert_it_works(url, engine)


def test_the_sql_for_sqlite_can_be_run_twice(tmp_path: Path) -> None:
    sql = printed_sql("sqlite")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.executescript(sql)
        connection.executescript(sql)


def test_mysql_and_mariadb_differ_only_in_the_collation() -> None:
    """Each has one that compares byte by byte and does not ignore spaces, under a name of its own."""
    mysql, mariadb = (printed_sql(dialect).replace("`", "") for dialect in ("mysql", "mariadb"))
    assert mysql != mariadb
    assert mysql.replace("utf8mb4_0900_bin", "utf8mb4_nopad_bin") == mariadb


# --- Alembic

ENVIRONMENT = """
from alembic import context
connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=context.config.attributes["metadata"])
with context.begin_transaction():
    context.run_migrations()
"""
SCRIPT = '''"""${message}"""
from alembic import op
import sqlalchemy as sa
import postroom.stores.schema
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
'''


async def test_alembic_makes_the_tables_and_sees_no_difference_afterwards(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "script.py.mako").write_text(SCRIPT)
    metadata = MetaData()
    outbox = Outbox(metadata=metadata, create_tables=False)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    with engine.begin() as connection:
        config.attributes.update(connection=connection, metadata=metadata)
        command.revision(config, "outbox", autogenerate=True)
        command.upgrade(config, "head")
    with engine.connect() as connection:
        metadata.reflect(connection, only=["alembic_version"])
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert len(outbox.tables.all()) < len(metadata.tables)
    await assert_it_works(url, engine)


# --- old and new code

Release = Callable[[int, int, int], None]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Release:
    """Be the code of another release: what it makes, what that requires of code, what it requires of tables."""

    def be(version: int, min_compatible: int, oldest_tables: int) -> None:
        monkeypatch.setattr(schema, "VERSION", version)
        monkeypatch.setattr(schema, "MIN_COMPATIBLE", min_compatible)
        monkeypatch.setattr(schema, "OLDEST_TABLES", oldest_tables)
        monkeypatch.setattr(sql_setup, "UPGRADES", dict.fromkeys(range(1, version), lambda transaction: None))

    return be


async def init(url: str) -> None:
    async with Desk(url) as desk:
        await desk.init()


async def versions(url: str) -> tuple[int, int]:
    async with Desk(url) as desk:
        meta = (await desk.status()).meta
    return meta.version, meta.min_compatible


async def test_old_relays_go_on_during_a_rolling_deploy(url: str, engine: Engine, release: Release) -> None:
    release(1, 1, 1)
    await init(url)
    await assert_it_works(url, engine)
    release(2, 1, 1)
    await init(url)
    assert await versions(url) == (2, 1)
    release(1, 1, 1)
    await init(url)
    await assert_it_works(url, engine)
    await init(url)
    assert await versions(url) == (2, 1), "older code must not take the version back"


async def test_code_that_the_tables_are_too_new_for_refuses(url: str, engine: Engine, release: Release) -> None:
    release(3, 2, 1)
    await init(url)
    await assert_it_works(url, engine)
    release(1, 1, 1)
    for create_tables in (True, False):
        with pytest.raises(SchemaMismatch, match=r"version 3 and need code that knows 2.*upgrade postroom"):
            await Relay(url, print, create_tables=create_tables).drain()
    release(2, 1, 1)
    await init(url)
    await assert_it_works(url, engine)


async def test_tables_that_are_too_old_for_the_code_are_refused_or_brought_up_to_date(
    url: str, engine: Engine, release: Release
) -> None:
    release(1, 1, 1)
    await init(url)
    await assert_it_works(url, engine)
    release(2, 2, 2)
    with pytest.raises(SchemaMismatch, match="version 1, this Postroom needs 2: run 'postroom init'"):
        await Relay(url, print, create_tables=False).drain()
    await init(url)
    assert await versions(url) == (2, 2)
    await assert_it_works(url, engine)


async def test_code_that_can_do_with_older_tables_leaves_them_alone_if_it_may_not_change_them(
    url: str, engine: Engine, release: Release
) -> None:
    release(1, 1, 1)
    await init(url)
    await assert_it_works(url, engine)
    release(2, 2, 1)
    await Relay(url, print, create_tables=False).drain()
    assert await versions(url) == (1, 1)


async def test_tables_from_which_no_way_is_known_are_left_alone(
    url: str, engine: Engine, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(1, 1, 1)
    await init(url)
    release(3, 3, 1)
    monkeypatch.setattr(sql_setup, "UPGRADES", {1: lambda transaction: None})
    with pytest.raises(SchemaMismatch, match="version 1, and this Postroom knows no way from 2 to 3"):
        await init(url)
    release(1, 1, 1)
    assert await versions(url) == (1, 1)
    await assert_it_works(url, engine)
