"""An application gives a relay the URL that it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, make_url, text

from postroom import ConfigurationError, Outbox, Relay, StoreUnavailable
from postroom.relay.wiring import store_for

from ..conftest import Database

URLS = {
    "postgresql://h/d": "postgresql+asyncpg://h/d",
    "postgres://h/d": "postgresql+asyncpg://h/d",
    "postgresql+psycopg2://h/d": "postgresql+asyncpg://h/d",
    "postgresql+pg8000://h/d": "postgresql+asyncpg://h/d",
    "postgresql+psycopg://h/d": "postgresql+psycopg://h/d",
    "postgresql+psycopg2://h/d?sslmode=require&connect_timeout=3": "postgresql+asyncpg://h/d?ssl=require",
    "postgresql+psycopg://h/d?sslmode=require": "postgresql+psycopg://h/d?sslmode=require",
    "postgresql://h/d?application_name=shop&target_session_attrs=primary": (
        "postgresql+asyncpg://h/d?target_session_attrs=primary"
    ),
    "mysql://h/d": "mysql+asyncmy://h/d",
    "postgresql+asyncpg://h/d?prepared_statement_cache_size=0": "postgresql+asyncpg://h/d",
    "mysql+pymysql://h/d?charset=latin1&read_timeout=5": "mysql+asyncmy://h/d",
    "mysql+mysqldb://h/d": "mysql+asyncmy://h/d",
    "mariadb+pymysql://h/d": "mariadb+asyncmy://h/d",
    "mariadb+mysqldb://h/d": "mariadb+asyncmy://h/d",
    "mysql+aiomysql://h/d": "mysql+aiomysql://h/d",
}


@pytest.mark.parametrize(("given", "used"), URLS.items())
def test_a_driver_is_chosen_for_every_url_of_an_application(given: str, used: str) -> None:
    store = store_for(given, Outbox())
    assert getattr(store, "_driver_url").render_as_string() == used  # noqa: B009


def test_a_driver_that_nobody_knows_is_refused_and_the_password_is_not_told() -> None:
    with pytest.raises(ConfigurationError, match="one of postgresql\\+asyncpg, postgresql\\+psycopg") as caught:
        store_for("postgresql+psycopg9://me:secret@h/d", Outbox())
    assert "secret" not in str(caught.value)


def test_the_url_of_an_engine_will_do_and_an_engine_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    store = store_for(engine.url, Outbox())
    assert str(getattr(store, "_driver_url", engine.url)).endswith("app.db")
    with pytest.raises(ConfigurationError, match=r"Engine is no store.*engine\.url"):
        store_for(engine, Outbox())
    with_password = store_for(make_url("postgresql://me:secret@h/d"), Outbox())
    assert getattr(with_password, "_driver_url").password == "secret"  # noqa: B009


async def test_a_relay_looks_in_the_schema_of_the_applications_metadata(empty_database: Database) -> None:
    url = make_url(empty_database("postgresql-15")).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    outbox = Outbox(metadata=MetaData(schema="app"))
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA app"))
        outbox.create_tables(connection)
        outbox.add(connection, "orders", b"1")
    engine.dispose()
    assert (await Relay(url, "memory:", outbox=outbox).drain()).delivered == 1


async def test_what_the_url_says_of_a_session_holds_for_the_relays_too(empty_database: Database) -> None:
    url = make_url(empty_database("postgresql-15")).set(
        drivername="postgresql+psycopg", query={"options": "-csearch_path=app"}
    )
    engine, outbox = create_engine(url), Outbox()
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA app"))
        outbox.create_tables(connection)
        outbox.add(connection, "orders", b"1")
    engine.dispose()
    assert (await Relay(url, "memory:", outbox=outbox).drain()).delivered == 1


@pytest.mark.parametrize(
    "url", ["postgresql://127.0.0.1:1/d?sslrootcert=ca.pem", "mysql://127.0.0.1:1/d?ssl_disabled=true"]
)
async def test_a_parameter_that_the_driver_does_not_know_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sslrootcert|ssl_disabled"):
        await store_for(url, Outbox()).open()


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/d", "mysql://127.0.0.1:1/d"])
async def test_a_drain_does_not_wait_for_ever_for_a_database_that_is_not_there(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        await Relay(url, "memory:", lease_ttl="1s", publish_timeout="200ms").drain()


@pytest.mark.parametrize(
    ("server", "driver", "query"),
    [
        (
            "postgresql-15",
            "postgresql+psycopg2",
            {"sslmode": "prefer", "connect_timeout": "5", "application_name": "a"},
        ),
        ("postgresql-15", "postgresql+pg8000", {}),
        ("postgresql-15", "postgresql+psycopg", {"connect_timeout": "5"}),
        ("mariadb", "mysql+pymysql", {"charset": "utf8mb4", "connect_timeout": "5", "autocommit": "true"}),
        ("mariadb", "mariadb+mysqldb", {"charset": "utf8mb4"}),
    ],
)
async def test_a_relay_runs_with_the_url_of_a_sync_application(
    server: str, driver: str, query: dict[str, str], empty_database: Database
) -> None:
    url = make_url(empty_database(server)).set(drivername=driver, query=query)
    report = await Relay(url.render_as_string(hide_password=False), print).drain()
    assert report.pending == 0
