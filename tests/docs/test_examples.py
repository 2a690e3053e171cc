"""The README's example and everything under examples/ does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from ..conftest import Database
from .markdown import ROOT, blocks

OUTPUT = {
    "quickstart.py": """\
orders order-1 OrderPlaced {"id":1,"total":42}
delivered 1, pending 0
""",
    "refused_message.py": """\
order-2 is on hold after 3 attempts, 1 waiting: MessageRejected: no such address
delivered order-2 OrderPlaced
delivered order-2 OrderPaid
""",
    "own_publisher.py": '"THE POST IS HERE"\n',
}

SYNC = ["sqlite", "postgresql+psycopg"]
ASYNC = ["sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy", "mysql+aiomysql"]
CONNECTIONS = {
    "aiomysql_async.py": ["mysql"],
    "aiosqlite_async.py": ["path"],
    "asyncmy_async.py": ["mysql"],
    "asyncpg_async.py": ["postgresql"],
    "django_sync.py": ["postgresql"],
    "psycopg_async.py": ["postgresql"],
    "psycopg_sync.py": ["postgresql"],
    "pymysql_sync.py": ["mysql"],
    "sqlalchemy_async_connection.py": ASYNC,
    "sqlalchemy_async_session.py": ASYNC,
    "sqlalchemy_connection.py": SYNC,
    "sqlalchemy_session.py": SYNC,
    "sqlite3_sync.py": ["path"],
}
"""Which databases each of examples/connections is run on: the driver of its URL, or the path of a SQLite file."""


def run(code: Path, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(code), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme_example() -> str:
    (example,) = [block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.info == "python"]
    return example.text


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    assert readme_example() == (ROOT / "examples/quickstart.py").read_text(encoding="utf-8")


def test_the_readmes_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code = tmp_path / "readme.py"
    code.write_text(readme_example(), encoding="utf-8")
    assert run(code, tmp_path) == OUTPUT["quickstart.py"]
    assert f"```text\n{OUTPUT['quickstart.py']}```" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_example_is_known_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("name", sorted(OUTPUT))
def test_an_example_prints_what_it_should(name: str, tmp_path: Path) -> None:
    assert run(ROOT / "examples" / name, tmp_path).endswith(OUTPUT[name])


# --- one per kind of connection


def test_every_connections_example_is_known_here_and_short() -> None:
    examples = list((ROOT / "examples/connections").glob("*.py"))
    assert {path.name for path in examples} == set(CONNECTIONS)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 30 for path in examples)


@pytest.mark.parametrize(("name", "driver"), [(name, driver) for name in CONNECTIONS for driver in CONNECTIONS[name]])
def test_a_connections_example_changes_its_table_and_delivers_its_message(
    name: str, driver: str, tmp_path: Path, empty_database: Database
) -> None:
    if driver == "path" or driver.startswith("sqlite"):
        place = str(tmp_path / "shop.db")
        url = f"sqlite:///{place}"
        argument = place if driver == "path" else url.replace("sqlite", driver, 1)
    else:
        url = empty_database("mariadb" if driver.startswith("mysql") else "postgresql-15")
        argument = make_url(url).set(drivername=driver).render_as_string(hide_password=False)
    printed = json.loads(run(ROOT / "examples/connections" / name, tmp_path, argument))
    assert (printed["topic"], printed["key"], printed["payload"]) == ("orders", "order-1", {"id": 1, "total": 42})
    assert orders_in(url) == [(1, 42)]


def orders_in(url: str) -> list[tuple[int, int]]:
    drivers = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    parts = make_url(url)
    engine = create_engine(parts.set(drivername=drivers[parts.get_backend_name()]))
    with engine.connect() as connection:
        found = [(row.id, row.total) for row in connection.execute(text("SELECT id, total FROM orders"))]
    engine.dispose()
    return found
