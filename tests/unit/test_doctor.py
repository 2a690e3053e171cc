"""`postroom doctor`: what it prints, and how it ends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from postroom import Outbox
from postroom.cli.program import program
from postroom.message import SLOTS
from postroom.ports import Finding, Meta, Status
from postroom.stores.checkup import of_status

STORE = "sqlite:///shop.db"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["--store", STORE, *arguments])


def add() -> None:
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        Outbox().add(connection, "orders", {}, key="a")


def test_a_healthy_outbox_ends_with_status_0() -> None:
    run("init")
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert all(line.startswith("ok ") for line in result.stdout.splitlines())


def test_a_problem_ends_with_status_1_and_its_remedy_stands_below_it() -> None:
    run("init")
    add()
    result = run("doctor")
    assert result.exit_code == 1
    *_, seen, remedy = result.stdout.splitlines()
    assert seen.startswith("PROBLEM  relays  1 message waits")
    assert remedy.startswith("       ")
    assert "`postroom relay`" in remedy


def test_a_warning_alone_ends_with_status_0() -> None:
    run("init")
    result = run("doctor", "--json")
    Path("postroom.toml").write_text('retention = "1m"\n')
    warned = run("doctor", "--json")
    assert (result.exit_code, warned.exit_code) == (0, 0)
    assert json.loads(result.stdout)["verdict"] == "ok"
    assert json.loads(warned.stdout)["verdict"] == "warning"
    assert [one["name"] for one in json.loads(warned.stdout)["findings"] if one["verdict"] == "warning"] == ["settings"]


def test_json_is_one_document() -> None:
    run("init")
    add()
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["outbox"], found["store"], found["verdict"]) == (1, "default", STORE, "problem")
    assert all(set(one) == {"name", "verdict", "seen", "remedy"} for one in found["findings"])


def test_missing_tables_are_a_finding() -> None:
    sqlite3.connect("shop.db").close()
    result = run("doctor", "--json")
    [found] = json.loads(result.stdout)["findings"]
    assert (result.exit_code, found["name"], found["verdict"]) == (1, "tables", "problem")


# --- what the status of any store tells


def status(**facts: Any) -> Status:
    known: dict[str, Any] = {
        "outbox": "default",
        "counts": {},
        "oldest_pending_seconds": None,
        "parked": 0,
        "holds": 0,
        "relays": [{"id": "relay-1"}],
        "slots_owned": SLOTS,
        "breakers": [],
        "meta": Meta(1, 1, "slots"),
    }
    return Status(**{**known, **facts})


def verdicts(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in findings if finding.verdict != "ok"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, {}),
        ({"relays": [], "slots_owned": 0}, {}),
        ({"relays": [], "slots_owned": 0, "counts": {"pending": 1}, "oldest_pending_seconds": 1e6}, "relays problem"),
        ({"slots_owned": 60, "counts": {"pending": 1}}, "leases warning"),
        ({"slots_owned": 60}, {}),
        ({"slots_owned": 0, "counts": {"pending": 1}, "meta": Meta(1, 1, "rows")}, {}),
        ({"counts": {"pending": 1}, "oldest_pending_seconds": 301.0}, "pending warning"),
        ({"counts": {"pending": 1}, "oldest_pending_seconds": 299.0}, {}),
        ({"counts": {"dead": 3}, "holds": 2}, {}),
        (
            {"breakers": [{"destination": "x", "tripped_at": datetime(2030, 1, 1, tzinfo=UTC), "error": "refused"}]},
            "destinations warning",
        ),
        ({"breakers": [{"destination": "x", "tripped_at": None, "error": None}]}, {}),
    ],
)
def test_what_a_status_tells(facts: dict[str, Any], expected: Any) -> None:
    wanted = dict([expected.split()]) if isinstance(expected, str) else expected
    assert verdicts(of_status(status(**facts))) == wanted


# --- destinations


def destinations(*arguments: str) -> list[dict[str, Any]]:
    result = run("doctor", "--json", *arguments)
    assert result.exit_code in (0, 1), result.output
    return [one for one in json.loads(result.stdout)["findings"] if one["name"] in ("destination", "routes")]


def test_a_destination_that_is_not_there_is_a_problem() -> None:
    run("init")
    [found] = destinations("--to", "redis://shop:secret@127.0.0.1:1/0")
    assert found["verdict"] == "problem"
    assert "redis://" in found["seen"]
    assert "secret" not in str(found)
    assert found["remedy"]
    assert run("doctor", "--to", "redis://127.0.0.1:1").exit_code == 1


def test_destinations_are_those_of_the_configuration_too() -> None:
    run("init")
    assert destinations() == []
    Path("postroom.toml").write_text('publisher = "redis://127.0.0.1:1"\nroutes = { "mail.*" = "stdout:" }\n')
    assert [found["verdict"] for found in destinations()] == ["ok", "problem"]


def test_a_topic_that_no_route_takes_is_a_problem() -> None:
    run("init")
    add()
    [destination, lost] = destinations("--route", "mail.*=stdout:")
    assert destination["verdict"] == "ok"
    assert (lost["name"], lost["verdict"]) == ("routes", "problem")
    assert "'orders'" in lost["seen"]
    assert destinations("--route", "orders=stdout:") == [destination]


def test_asking_a_destination_sends_nothing() -> None:
    run("init")
    add()
    destinations("--to", "file:out.jsonl")
    assert not Path("out.jsonl").exists()
