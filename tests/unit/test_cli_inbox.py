"""`postroom inbox`: the tables, what is remembered, and forgetting it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from postroom import Inbox, Outbox, Received
from postroom.cli.program import program
from postroom.testing import FakeClock

STORE = "sqlite:///consumer.db"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["--store", STORE, "inbox", *arguments])


def read(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def handle(*ids: str, consumer: str = "billing", days_ago: float = 0, name: str = "default") -> None:
    inbox = Inbox(name, clock=FakeClock(datetime.now(UTC) - timedelta(days=days_ago)))
    with closing(sqlite3.connect("consumer.db")) as connection, connection:
        for id in ids:
            assert inbox.first_time(connection, id, consumer=consumer)


def test_the_tables_are_created_and_nothing_else_is() -> None:
    assert run("init").stdout == "the tables of inbox 'default' are in sqlite:///consumer.db\n"
    found = read("init")
    assert found == {"inbox": "default", "store": STORE, "tables": ["postroom_inbox", "postroom_inbox_marks"]}
    with closing(sqlite3.connect("consumer.db")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"postroom_inbox", "postroom_inbox_marks"}


def test_the_sql_needs_no_database() -> None:
    assert "ENGINE=InnoDB" in run("init", "--sql", "--dialect", "mysql").stdout
    assert read("init", "--sql") == {"inbox": "default", "dialect": "sqlite", "sql": Inbox().ddl()}
    assert not Path("consumer.db").exists()
    assert run("init", "--dialect", "mysql").exit_code == 2


@pytest.mark.parametrize("command", ["status", "clean"])
def test_without_tables_it_says_what_to_do_and_makes_nothing(command: str) -> None:
    result = run(command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no such file" in result.stderr
    assert not Path("consumer.db").exists()
    with closing(sqlite3.connect("consumer.db")) as connection, connection:
        Outbox().create_tables(connection)
    result = run(command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "postroom inbox init" in result.stderr


def test_the_status_tells_what_is_remembered_for_whom() -> None:
    handle("1", "2")
    handle("1", consumer="mail")
    with closing(sqlite3.connect("consumer.db")) as connection, connection:
        Inbox().in_turn(connection, Received(id="1", topic="t", key="k", sequence=1), consumer="ledger")
    lines = run("status").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["consumer", "messages"], ["billing", "2"], ["ledger", "0"], ["mail", "1"]
    ]  # fmt: skip
    found = read("status")
    assert found.keys() == {"inbox", "store", "consumers"}
    billing, ledger, _ = found["consumers"]
    assert billing.keys() == {"consumer", "messages", "oldest", "newest", "keys"}
    assert billing["oldest"].endswith("+00:00")
    assert ledger == {"consumer": "ledger", "messages": 0, "oldest": None, "newest": None, "keys": 1}


def test_what_is_older_than_the_window_is_forgotten_in_batches() -> None:
    handle(*map(str, range(25)), days_ago=31)
    handle("new", days_ago=29)
    assert read("clean", "--batch", "10") == {"forgotten": 25}
    assert run("clean").stdout == "there was nothing to forget\n"
    assert run("clean", "--window", "1h").stdout == "forgot 1 message\n"
    assert run("clean", "--window", "soon").exit_code == 2
    assert run("clean", "--batch", "0").exit_code == 2


def test_an_inbox_may_have_a_name_and_a_prefix() -> None:
    handle("1", name="billing")
    assert [consumer["messages"] for consumer in read("status", "--name", "billing")["consumers"]] == [1]
    assert run("status").exit_code == 3
    assert read("init", "--prefix", "mine_")["tables"] == ["mine_inbox", "mine_inbox_marks"]


def test_a_store_in_memory_has_no_inbox_for_others() -> None:
    result = CliRunner().invoke(program, ["--store", "memory:", "inbox", "status"])
    assert result.exit_code == 2
    assert "no database that an inbox could be in" in result.stderr


def test_alone_it_says_what_there_is() -> None:
    result = run()
    assert result.exit_code == 0
    assert all(f"  {name} " in result.stdout for name in ("init", "status", "clean"))
