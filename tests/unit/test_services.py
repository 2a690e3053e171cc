"""The servers that tests run on: one of each, whoever asks, and databases with nothing in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from tests import services
from tests.conftest import Database, server_url
from tests.services import lifetime, places, postgresql, registry
from tests.services.databases import at_database
from tests.services.processes import running, wait_until
from tests.services.registry import OLDEST

ASK = """
import sys
from pathlib import Path
from tests.services import places, registry
places.ROOT = Path(sys.argv[1])
print(registry.url("postgresql-15"))
"""

each_database = pytest.mark.parametrize("name", registry.DATABASES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("services")
    yield place
    shutil.rmtree((place / OLDEST.name).resolve(), ignore_errors=True)  # it may be a link to somewhere else


@pytest.fixture
def elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place without servers, in which they may be started and stopped."""
    monkeypatch.setattr(places, "ROOT", place)
    monkeypatch.setattr(registry, "_failures", {})
    monkeypatch.setattr(registry, "_versions", {})
    monkeypatch.delenv(OLDEST.variable, raising=False)
    yield place
    lifetime.stop()


@pytest.fixture
def private(elsewhere: Path) -> str:
    """The URL of a server that no other test uses."""
    try:
        return services.url(OLDEST.name)
    except services.ServerUnavailable as error:
        pytest.skip(str(error))


def engine_of(url: str) -> Engine:
    driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    scheme, rest = url.split(":", 1)
    return create_engine(f"{driver[scheme]}:{rest}", poolclass=NullPool)


def create_table(url: str) -> None:
    with engine_of(url).begin() as connection:
        connection.execute(text("CREATE TABLE parcels (id integer)"))


def tables(url: str) -> list[str]:
    return inspect(engine_of(url)).get_table_names()


def databases(name: str) -> set[str]:
    """The URLs of all databases of a server."""
    administrator = services.url(name)
    schemas = "information_schema.schemata" if name == "mariadb" else "pg_database"
    column = "schema_name" if name == "mariadb" else "datname"
    with engine_of(administrator).connect() as connection:
        names = connection.scalars(text(f"SELECT {column} FROM {schemas}"))
        return {at_database(administrator, name) for name in names}


def is_running(place: Path) -> bool:
    return running((place / OLDEST.name).resolve()) is not None


@pytest.mark.parametrize("name", services.NAMES)
def test_a_server_answers_and_says_its_version(name: str) -> None:
    server_url(name)
    _, number = services.version(name).split()
    assert number[0].isdigit()


@each_database
def test_a_fresh_database_is_empty_and_dropped_whoever_is_connected(name: str, empty_database: Database) -> None:
    empty_database(name)
    with services.fresh_database(name) as url, services.fresh_database(name) as other:
        create_table(url)
        assert tables(url) == ["parcels"]
        assert tables(other) == []
        connection = engine_of(url).connect()
        connection.execute(text("SELECT * FROM parcels"))
    connection.invalidate()
    connection.close()
    assert databases(name).isdisjoint({url, other})


@each_database
def test_an_emptied_database_has_neither_tables_nor_sessions_of_before(name: str, empty_database: Database) -> None:
    url = empty_database(name)
    create_table(url)
    leaked = engine_of(url).connect()
    leaked.execute(text("INSERT INTO parcels VALUES (1)"))
    assert empty_database(name) == url
    assert tables(url) == []
    with pytest.raises(DBAPIError):
        leaked.execute(text("SELECT 1"))
    leaked.close()


@pytest.mark.parametrize("name", ["postgresql-15", "postgresql-18", "pgbouncer"])
def test_an_emptied_database_has_only_the_public_schema(name: str, empty_database: Database) -> None:
    with engine_of(empty_database(name)).begin() as connection:
        connection.execute(text('CREATE SCHEMA "Post room"'))
    assert set(inspect(engine_of(empty_database(name))).get_schema_names()) == {"information_schema", "public"}


def test_processes_that_ask_at_once_get_one_server(private: str, elsewhere: Path) -> None:
    OLDEST.stop()
    ask = [sys.executable, "-c", ASK, str(elsewhere)]
    asking = [subprocess.Popen(ask, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0].strip() for process in asking}
    assert len(answers) == 1
    assert answers.pop().startswith("postgresql://postgres@127.0.0.1:")
    assert is_running(elsewhere)
    log = (elsewhere / OLDEST.name / "log").read_text()
    assert log.count("starting PostgreSQL") == 1


def test_a_server_that_died_starts_again_with_its_data(private: str, elsewhere: Path) -> None:
    create_table(private)
    pid = running((elsewhere / OLDEST.name).resolve())
    assert pid
    os.kill(pid, signal.SIGQUIT)
    assert wait_until(lambda: not is_running(elsewhere), seconds=30)
    assert tables(services.url(OLDEST.name)) == ["parcels"]


def test_a_server_that_was_stopped_starts_again_without_data(private: str, elsewhere: Path) -> None:
    create_table(private)
    OLDEST.stop()
    assert not is_running(elsewhere)
    assert tables(services.url(OLDEST.name)) == []


def test_servers_stop_when_their_last_user_leaves(private: str, elsewhere: Path) -> None:
    with services.in_use():
        with services.in_use():
            pass
        assert is_running(elsewhere)
    assert not is_running(elsewhere)


def test_servers_that_are_kept_outlive_their_users(private: str, elsewhere: Path) -> None:
    with services.in_use():
        lifetime.keep()
    assert is_running(elsewhere)
    assert lifetime.stop() == [OLDEST.name]
    assert not is_running(elsewhere)


def test_a_given_server_is_used_and_none_is_started(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLDEST.variable, "postgresql+asyncpg://me@db.example:5433/mine")
    assert OLDEST.url() == "postgresql://me@db.example:5433/mine"
    assert not is_running(elsewhere)


def test_a_given_server_that_does_not_answer_is_unavailable(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLDEST.variable, "postgresql://me:secret@127.0.0.1:1/mine")
    with pytest.raises(services.ServerUnavailable, match=OLDEST.variable) as raised:
        services.url(OLDEST.name)
    assert "secret" not in str(raised.value)


def test_a_server_that_does_not_start_says_why(private: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OLDEST.stop()
    monkeypatch.setitem(postgresql.SETTINGS, "no_such_setting", "1")
    with pytest.raises(services.ServerUnavailable, match=r'unrecognized configuration parameter "no_such_setting"'):
        services.url(OLDEST.name)
