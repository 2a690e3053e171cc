"""Tables made by the application's own migrations, or by Postroom while Alembic looks on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata, render_python_code
from alembic.autogenerate.api import produce_migrations
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, MetaData, create_engine, make_url, text

from postroom import Outbox

SERVERS = {"postgresql-15": "postgresql+psycopg", "mariadb": "mysql+pymysql"}


@pytest.fixture(params=["sqlite", *SERVERS])
def connection(empty_database: Callable[[str], str], request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "sqlite":
        url = make_url("sqlite://")
    else:
        url = make_url(empty_database(request.param)).set(drivername=SERVERS[request.param])
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def migrate(connection: Connection, metadata: MetaData) -> str:
    """Do what autogenerate finds, and return it as it would be written to a migration."""
    context = MigrationContext.configure(connection)
    script = produce_migrations(context, metadata)
    assert script.upgrade_ops is not None
    operations = Operations(context)
    for operation in script.upgrade_ops.ops:
        for each in getattr(operation, "ops", [operation]):
            operations.invoke(each)
    connection.commit()
    return render_python_code(script.upgrade_ops, migration_context=context)


def differences(connection: Connection, metadata: MetaData) -> list[Any]:
    return compare_metadata(MigrationContext.configure(connection), metadata)


def test_after_a_migration_alembic_sees_no_differences(connection: Connection) -> None:
    metadata = MetaData()
    outbox = Outbox(metadata=metadata, create_tables=False)
    code = migrate(connection, metadata)
    assert f"'{outbox.tables.hot.name}'" in code
    assert differences(connection, metadata) == []


def test_messages_can_be_added_to_migrated_tables(connection: Connection) -> None:
    metadata = MetaData()
    outbox = Outbox(metadata=metadata, create_tables=False)
    migrate(connection, metadata)
    outbox.add(connection, "orders", b"x", key="k")
    assert connection.execute(text("SELECT count(*) FROM postroom_outbox")).scalar_one() == 1


def test_an_archive_that_postroom_divided_is_no_difference_to_those_who_leave_it_out(
    empty_database: Callable[[str], str],
) -> None:
    engine = create_engine(make_url(empty_database("postgresql-15")).set(drivername="postgresql+psycopg"))
    metadata = MetaData()
    Outbox(metadata=metadata).create_tables(engine)
    with engine.connect() as connection:
        found = differences(connection, metadata)
        context = MigrationContext.configure(connection, opts={"include_object": is_for_migrations})
        left = compare_metadata(context, metadata)
    engine.dispose()
    assert [item.name for what, item in found if what == "remove_table"] == ["postroom_archive_default"]
    assert left == []


def is_for_migrations(item: object, name: str | None, *_: object) -> bool:
    """As the documentation has it."""
    return not (name or "").startswith("postroom_archive")


def test_on_postgresql_tables_that_change_much_have_settings_of_their_own(empty_database: Callable[[str], str]) -> None:
    engine = create_engine(make_url(empty_database("postgresql-15")).set(drivername="postgresql+psycopg"))
    Outbox().create_tables(engine)
    asked = "SELECT relname, array_to_string(reloptions, ' ') FROM pg_class WHERE reloptions IS NOT NULL"
    with engine.connect() as connection:
        options = {row[0]: row[1] for row in connection.execute(text(asked))}
    engine.dispose()
    assert "autovacuum_vacuum_threshold=10000" in options["postroom_outbox"]
    assert "autovacuum_vacuum_scale_factor=0" in options["postroom_outbox"]
    assert all("fillfactor=50" in options[f"postroom_{name}"] for name in ("leases", "relays", "breakers", "meta"))
    assert any(name.startswith("pg_toast") and "threshold=10000" in option for name, option in options.items())
