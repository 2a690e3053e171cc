"""The command line: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from postroom.cli import mend, output
from postroom.cli.options import spelled
from postroom.cli.program import program
from postroom.configuration import Configuration, load
from postroom.desk import Desk
from postroom.errors import MessageRejected
from postroom.message import Message, new_id
from postroom.outbox import Outbox
from postroom.relay.relay import Relay
from postroom.settings import Settings
from tests.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs" / "reference"
STORE = "sqlite:///shop.db"
BINARY = b"\x00\xff\xfe"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("POSTROOM_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(program, arguments, input=input)


def read(*arguments: str, status: int = 0) -> Any:
    """The one JSON document that a command prints."""
    result = run("--store", STORE, *arguments, "--json")
    assert result.exit_code == status, result.stderr
    return json.loads(result.stdout)


def complaint(*arguments: str, status: int) -> str:
    """The one line that a command says when it cannot do its work."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def add(topic: str = "orders", payload: object = None, **options: Any) -> Message:
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        return Outbox().add(connection, topic, payload, **options)


def deliver() -> None:
    """Everything but the topic "bad", which is refused for good."""

    def publish(message: Message) -> None:
        if message.topic == "bad":
            raise MessageRejected("refused by\n\x1b[31mhttp://shop:secret@broker/", permanent=True)

    asyncio.run(Relay(STORE, publish, retention="7d", trip_after=1000).drain())


@pytest.fixture
def shop(place: Path) -> dict[str, Message]:
    """One message in each state."""
    messages = {
        "delivered": add("orders", {"name": "Müller"}, key="a", type="OrderPlaced", headers={"tenant": "x"}),
        "dead": add("bad", {"n": 1}, key="[red]key\x1b[31m", type="Bad"),
    }
    deliver()
    messages["held"] = add("bad", {"n": 2}, key="[red]key\x1b[31m", type="Bad")
    messages["pending"] = add("mail", BINARY)
    messages["later"] = add("mail", "hello", delay=3600)
    return messages


# --- the program itself


def test_without_a_command_it_says_what_there_is():
    result = run()
    assert result.exit_code == 0
    assert "Exit status:" in result.stdout
    assert all(f"  {name} " in result.stdout for name in program.commands)


def test_it_tells_its_version():
    assert re.fullmatch(r"postroom, version \d+\.\d+\.\d+\S*\n", run("--version").stdout)


@pytest.mark.parametrize("name", list(program.commands))
def test_every_command_has_help(name: str):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["lss"], "Did you mean 'ls'? See `postroom --help`"),
        (["ls", "--stat", "dead"], "--state"),
        (["ls", "--state", "lost"], "'pending'"),
        (["ls", "--limit", "0"], "--limit"),
        (["ls", "--older-than", "soon"], "not a length of time"),
        (["show"], "'ID'"),
        (["relay", "--route", "orders"], "write GLOB=URL"),
        (["relay", "--on-dead", "{orders"], "begins like JSON"),
        (["revive"], "Give ids, a filter such as --topic, or --all"),
        (["revive", "--limit", "3"], "which messages?"),
        (["discard", "some-id-or-other", "--topic", "x"], "not both"),
        (["replay", "--all", "--key", "x"], "--all means no filter"),
        (["init", "--dialect", "sqlite"], "--dialect goes with --sql"),
    ],
)
def test_wrong_flags_are_a_usage_error(arguments: list[str], part: str):
    assert part in complaint(*arguments, status=2)


def test_options_of_the_program_may_stand_on_either_side(shop: dict[str, Message]):
    outputs = {
        run("--store", STORE, "--json", "ls").stdout,
        run("ls", "--store", STORE, "--json").stdout,
        run("--store", "sqlite:///other.db", "ls", "--json", "--store", STORE).stdout,
    }
    assert len(outputs) == 1
    assert json.loads(outputs.pop())


# --- configuration


def test_a_file_says_which_database(shop: dict[str, Message], place: Path):
    (place / "postroom.toml").write_text(f'store = "{STORE}"')
    assert run("ls").exit_code == 0
    (place / "postroom.toml").rename(place / "other.toml")
    assert run("ls").exit_code == 2
    assert run("ls", "--config", "other.toml").exit_code == 0


def test_variables_win_over_the_file_and_flags_over_variables(
    shop: dict[str, Message], place: Path, monkeypatch: pytest.MonkeyPatch
):
    (place / "postroom.toml").write_text('store = "sqlite:///nowhere/x.db"')
    assert run("status").exit_code == 3
    monkeypatch.setenv("POSTROOM_STORE", STORE)
    assert run("status").exit_code == 0
    assert run("status", "--store", "sqlite:///nowhere/x.db").exit_code == 3


def test_a_variable_that_is_nearly_right_is_pointed_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSTROOM_STOR", STORE)
    result = run("status")
    assert result.exit_code == 2
    assert "did you mean POSTROOM_STORE?" in result.stderr


def test_without_a_database_it_says_how_to_name_one():
    line = complaint("status", status=2)
    assert "--store sqlite:///app.db" in line
    assert "POSTROOM_STORE" in line


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("store = ", "postroom.toml cannot be read"),
        ("stores = 'x'", "did you mean 'store'?"),
        ("batch_size = 'many'", "batch_size in postroom.toml"),
        ("lease_ttl = '1s'\npublish_timeout = '5s'", "publish_timeout"),
        ("publisher = 'stdout:'\n[routes]\n'*' = 'stdout:'", "keep one of them"),
    ],
)
def test_a_bad_file_is_a_configuration_error(place: Path, text: str, part: str):
    (place / "postroom.toml").write_text(text)
    assert part in complaint("status", status=2)


def test_a_configuration_file_that_is_not_there_is_an_error():
    assert "does not exist" in complaint("--config", "none.toml", "status", status=2)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["status", "--store", "foo://x"], "known are mariadb, memory, mysql"),
        (["status", "--store", "app.db"], "sqlite:///app.db"),
        (["status", "--store", "sqlite:///x.db", "--schema", "shop"], "no schemas"),
        (["status", "--store", "sqlite:///x.db", "--prefix", "no good"], "prefix"),
        (["drain", "--store", STORE], "no destination is configured"),
        (["relay", "--store", STORE], "--publisher stdout:"),
        (["drain", "--store", STORE, "--publisher", "pigeon:"], "no publisher is registered for 'pigeon'"),
        (["drain", "--store", STORE, "--publisher", "file:"], "names no file"),
        (["drain", "--store", STORE, "--publisher", "memory:", "--batch-size", "x"], "--batch-size"),
        (["drain", "--store", STORE, "--publisher", "memory:", "--claim", "rows"], "claim='rows'"),
        (
            ["drain", "--store", STORE, "--publisher", "memory:", "--lease-ttl", "1s", "--publish-timeout", "1s"],
            "publish_timeout (1s) must be at most",
        ),
        (["clean", "--store", STORE, "--retention", "soon"], "--retention"),
        (["init", "--sql", "--dialect", "clay"], "'clay'"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(arguments: list[str], part: str, place: Path):
    assert part in complaint(*arguments, status=2)
    assert list(place.iterdir()) == []


# --- databases that cannot be used


@pytest.mark.parametrize("command", ["status", "ls", "holds", "clean"])
def test_a_database_that_is_not_there_is_told_with_the_remedy(command: str, place: Path):
    assert "postroom init" in complaint(command, "--store", STORE, status=3)
    assert list(place.iterdir()) == []


def test_missing_tables_are_told_with_the_remedy(place: Path):
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id)")
    assert "postroom init" in complaint("status", "--store", STORE, status=3)
    line = complaint("drain", "--store", STORE, "--publisher", "memory:", "--no-create-tables", status=3)
    assert "postroom init" in line


def test_a_folder_that_is_not_there_is_told():
    assert "does not exist" in complaint("init", "--store", "sqlite:///none/x.db", status=3)


def test_tables_of_a_newer_version_are_told_with_the_remedy(shop: dict[str, Message]):
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("UPDATE postroom_meta SET value = '99' WHERE name IN ('version', 'min_compatible')")
    assert "upgrade postroom" in complaint("status", "--store", STORE, status=3)


def test_a_file_that_is_no_database_is_told(place: Path):
    (place / "shop.db").write_text("this is a text, and not a database at all. " * 50)
    complaint("status", "--store", STORE, status=3)


# --- bugs, interruptions


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    async def fail(desk: Desk) -> None:
        raise error

    monkeypatch.setattr(Desk, "status", fail)


def test_an_unexpected_error_is_one_line_and_a_traceback_if_asked(monkeypatch: pytest.MonkeyPatch):
    fail_with(monkeypatch, KeyError("surprise"))
    assert "--verbose" in complaint("status", "--store", STORE, status=70)
    result = run("status", "--store", STORE, "-v")
    assert result.exit_code == 70
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: unexpected KeyError")


def test_an_interruption_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert complaint("status", "--store", STORE, status=130) == "error: interrupted"


# --- init


def test_init_creates_the_tables_and_may_be_repeated():
    for _ in range(2):
        result = run("init", "--store", STORE)
        assert (result.exit_code, result.stderr) == (0, "")
        assert STORE in result.stdout
    document = read("init")
    assert document.keys() == {"outbox", "store", "tables"}
    assert "postroom_outbox" in document["tables"]


@pytest.mark.parametrize("options", [[], ["--dialect", "sqlite"], ["--store", "sqlite:///nowhere/x.db"]])
def test_the_sql_makes_tables_that_work(options: list[str], place: Path):
    result = run("init", "--sql", *options)
    assert result.exit_code == 0
    assert list(place.iterdir()) == []
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.executescript(result.stdout)
    add()
    assert read("status")["counts"]["pending"] == 1


def test_the_sql_may_be_json():
    assert read("init", "--sql").keys() == {"outbox", "dialect", "sql"}


# --- status


def test_the_status_is_told_to_people(shop: dict[str, Message]):
    result = run("status", "--store", STORE)
    assert result.exit_code == 0
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in result.stdout.splitlines())
    assert {"dead": "1 (rejected 1)", "pending": "2", "later": "1", "keys on hold": "1"}.items() <= facts.items()
    assert facts["slots owned"] == "0/64"
    assert "no relay is alive" in result.stderr
    assert "postroom relay" in result.stderr


def test_the_status_is_told_to_programs(shop: dict[str, Message]):
    document = read("status")
    assert document.keys() == {
        "outbox", "store", "counts", "reasons", "oldest_pending_seconds", "holds", "parked", "relays", "slots_owned",
        "slots", "breakers", "schema_version", "min_compatible", "claim", "warnings",
    }  # fmt: skip
    assert (document["store"], document["claim"], document["slots"]) == (STORE, "slots", 64)
    assert (document["counts"]["dead"], document["reasons"]) == (1, {"rejected": 1})
    assert len(document["warnings"]) == 1


def test_a_health_check_fails_when_the_backlog_is_old(shop: dict[str, Message]):
    assert run("status", "--store", STORE, "--check").exit_code == 0
    result = run("status", "--store", STORE, "--check", "--max-age", "0s")
    assert result.exit_code == 1
    assert "oldest pending message" in result.stderr
    assert len(read("status", "--check", "--max-age", "0s", status=1)["warnings"]) == 2


def test_a_health_check_of_an_empty_outbox_is_fine():
    run("init", "--store", STORE)
    assert run("status", "--store", STORE, "--check", "--max-age", "0s").exit_code == 0


async def status_with_a_relay_and_a_tripped_breaker(desk: Desk) -> Any:
    store = await desk._open()
    from postroom.ports import Beat

    await store.renew(Beat(relay="relay-1", host="here", pid=1, ttl=60, epochs={}, marks={}, in_flight=7))
    await store.report_trip("amqp://broker", "relay-1", "amqp://shop:secret@broker refused")
    return await store.status()


def test_relays_and_breakers_are_shown_without_secrets(shop: dict[str, Message], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Desk, "status", status_with_a_relay_and_a_tripped_breaker)
    result = run("status", "--store", STORE)
    assert "relay-1" in result.stdout
    assert re.search(r"amqp://broker +tripped", result.stdout)
    assert "secret" not in result.output
    document = read("status")
    assert (document["relays"][0]["in_flight"], document["breakers"][0]["tripped"]) == (7, True)
    assert "secret" not in json.dumps(document)
    assert document["warnings"] == []


# --- ls, show, holds


ENTRY = {
    "id", "state", "topic", "key", "type", "created_at", "due_at", "expires_at", "settled_at", "attempts", "replays",
    "held", "parked", "reason", "error", "position", "slot", "sequence", "generation", "headers", "content_type",
    "payload_encoding", "payload",
}  # fmt: skip


def test_messages_are_listed_for_people_with_nothing_cut(shop: dict[str, Message]):
    result = run("ls", "--store", STORE)
    assert all(message.id in result.stdout for message in shop.values())
    assert result.stdout.splitlines()[0].split() == ["id", "state", "topic", "key", "type", "age", "attempts", "error"]
    assert "pending (held)" in result.stdout
    assert "…" not in result.stdout


def test_what_a_terminal_would_obey_is_escaped(shop: dict[str, Message]):
    for command in (["ls"], ["holds"], ["show", shop["dead"].id]):
        result = run(*command, "--store", STORE)
        assert "\x1b" not in result.output
        assert "[red]key\\x1b[31m" in result.stdout


def test_secrets_in_errors_are_hidden(shop: dict[str, Message]):
    for command in (["ls"], ["holds"], ["show", shop["dead"].id]):
        assert "secret" not in run(*command, "--store", STORE).output
        assert "secret" not in run(*command, "--store", STORE, "--json").output


def test_messages_are_listed_for_programs(shop: dict[str, Message]):
    entries = read("ls")
    assert all(entry.keys() == ENTRY for entry in entries)
    by_id = {entry["id"]: entry for entry in entries}
    states = {"delivered": "delivered", "dead": "dead", "held": "pending", "pending": "pending", "later": "later"}
    assert {name: by_id[message.id]["state"] for name, message in shop.items()} == states
    assert by_id[shop["delivered"].id]["payload"] == {"name": "Müller"}
    assert (by_id[shop["pending"].id]["payload_encoding"], by_id[shop["pending"].id]["payload"]) == ("base64", "AP/+")
    assert by_id[shop["held"].id]["held"] is True


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--state", "dead"], ["dead"]),
        (["--topic", "ma*"], ["later", "pending"]),
        (["--key", "a"], ["delivered"]),
        (["--type", "B*", "--state", "pending"], ["held"]),
        (["--older-than", "1h"], []),
        (["--newer-than", "1h", "--limit", "1"], ["delivered"]),
        (["--state", "pending", "--offset", "1"], ["pending"]),
    ],
)
def test_messages_are_listed_by_what_they_are(shop: dict[str, Message], options: list[str], expected: list[str]):
    names = {message.id: name for name, message in shop.items()}
    assert sorted(names[entry["id"]] for entry in read("ls", *options)) == expected


def test_an_empty_list_is_a_list():
    run("init", "--store", STORE)
    assert read("ls") == read("holds") == []


def test_a_full_page_says_that_there_may_be_more(shop: dict[str, Message]):
    assert "there may be more" in run("ls", "--store", STORE, "--limit", "2").stderr
    assert run("ls", "--store", STORE).stderr == ""


def test_a_message_is_shown(shop: dict[str, Message]):
    message = shop["delivered"]
    result = run("show", message.id, "--store", STORE)
    assert result.exit_code == 0
    assert '"name": "Müller"' in result.stdout
    assert re.search(r"tenant +x", result.stdout)
    assert re.search(r"state +delivered", result.stdout)
    document = read("show", message.id)
    assert document.keys() == ENTRY
    assert document["headers"] == {"tenant": "x"}
    assert document["created_at"].endswith("+00:00")


def test_the_raw_payload_is_written_byte_for_byte(shop: dict[str, Message]):
    assert run("show", shop["pending"].id, "--raw", "--store", STORE).stdout_bytes == BINARY


@pytest.mark.parametrize(
    ("payload", "encoding", "shown"),
    [
        (b"plain \xc3\xa9", "text", "plain é"),
        (b"NaN", "text", "NaN"),
        (b"[1e999]", "text", "[1e999]"),
        (b"[" * 100_000, "text", "[" * 100_000),
        (b'"\\ud800"', "json", "\ud800"),
        (b"", "text", ""),
    ],
)
def test_any_payload_can_be_shown(payload: bytes, encoding: str, shown: str):
    message = add("raw", payload)
    document = read("show", message.id)
    assert (document["payload_encoding"], document["payload"]) == (encoding, shown)
    assert run("show", message.id, "--store", STORE).exit_code == 0


def test_an_unknown_id_is_told_with_the_remedy(shop: dict[str, Message]):
    assert "postroom ls" in complaint("show", new_id(), "--store", STORE, status=1)
    assert "first 8" in complaint("show", "abc", "--store", STORE, status=1)
    assert "no dead message" in complaint("revive", new_id(), "--store", STORE, status=1)
    assert "is pending, not dead" in complaint("discard", shop["pending"].id, "--store", STORE, status=1)


def test_holds_tell_who_waits_for_what(shop: dict[str, Message]):
    result = run("holds", "--store", STORE)
    assert shop["dead"].id in result.stdout
    assert "postroom revive" in result.stderr
    [hold] = read("holds", "--topic", "bad", "--key", "[red]key\x1b[31m")
    assert hold.keys() == {
        "topic", "key", "status", "message_id", "attempts", "since", "until", "waiting", "error", "slot", "position",
    }  # fmt: skip
    assert (hold["message_id"], hold["status"], hold["waiting"], hold["until"]) == (shop["dead"].id, "dead", 1, None)
    assert read("holds", "--topic", "orders") == []


# --- mending


def test_dead_messages_are_revived(shop: dict[str, Message]):
    result = run("revive", shop["dead"].id, "--store", STORE)
    assert (result.exit_code, result.stdout) == (0, "revived 1 message\n")
    assert read("revive", "--all") == {"revived": 0}
    assert "no dead message matches" in run("revive", "--topic", "x*", "--store", STORE).stdout


def test_dead_messages_are_discarded(shop: dict[str, Message]):
    assert read("discard", shop["dead"].id) == {"discarded": 1}
    assert read("discard", "--all", "--yes") == {"discarded": 0}
    assert [entry["id"] for entry in read("ls", "--state", "discarded")] == [shop["dead"].id]


def test_discarding_by_filter_needs_yes_when_there_is_nobody_to_ask(shop: dict[str, Message]):
    assert "--yes" in complaint("discard", "--topic", "bad", "--store", STORE, status=2)
    assert read("discard", "--topic", "bad", "--yes") == {"discarded": 1}


@pytest.mark.parametrize(("answer", "status", "left"), [("n\n", 1, 1), ("y\n", 0, 0), ("", 2, 1)])
def test_discarding_asks_who_is_there(
    shop: dict[str, Message], monkeypatch: pytest.MonkeyPatch, answer: str, status: int, left: int
):
    monkeypatch.setattr(mend, "_is_anybody_there", lambda: True)
    result = run("discard", "--topic", "bad", "--store", STORE, input=answer)
    assert result.exit_code == status
    assert "every dead message with topic bad" in result.stderr
    assert read("status")["counts"]["dead"] == left
    assert run("discard", "--all", "--yes", "--store", STORE, input="").exit_code == 0


def test_delivered_messages_are_replayed(shop: dict[str, Message]):
    assert read("replay", shop["delivered"].id) == {"replayed": 1}
    assert read("replay", "--topic", "orders", "--new-id") == {"replayed": 1}
    assert read("status")["counts"]["pending"] == 4
    assert "retention" in run("replay", "--key", "none", "--store", STORE).stdout


def test_cleaning_keeps_the_archive_unless_a_retention_is_given(shop: dict[str, Message]):
    result = run("clean", "--store", STORE)
    assert result.exit_code == 0
    assert "--retention" in result.stderr
    assert read("clean", "--retention", "1d") == {"cleaned": 0}
    assert read("clean", "--retention", "0s", "--batch", "1") == {"cleaned": 1}
    counts = read("status")["counts"]
    assert (counts["delivered"], counts["dead"], counts["pending"], counts["later"]) == (0, 1, 2, 1)


# --- drain


def test_draining_delivers_and_reports(place: Path):
    add("orders", {"n": 1})
    add("mail", {"n": 2})
    document = read("drain", "--route", "orders=file:orders.jsonl", "--publisher", "file:rest.jsonl")
    assert document == {
        "delivered": 2, "retried": 0, "dead": 0, "held": 0, "pending": 0, "superseded": 0, "unavailable": {},
    }  # fmt: skip
    assert len((place / "orders.jsonl").read_text().splitlines()) == 1
    assert len((place / "rest.jsonl").read_text().splitlines()) == 1
    result = run("drain", "--store", STORE, "--publisher", "memory:")
    assert result.stdout.split()[:2] == ["delivered", "retried"]


def test_draining_with_keys_on_hold_needs_attention(shop: dict[str, Message]):
    assert read("drain", "--publisher", "memory:", status=1)["held"] == 1


def test_draining_to_an_unavailable_destination_needs_attention(place: Path):
    add("orders")
    document = read("drain", "--publisher", f"file:{place}/none/out.jsonl", status=1)
    assert (document["pending"], document["dead"]) == (1, 0)
    [error] = document["unavailable"].values()
    assert "none" in error


def test_settings_reach_the_relay(monkeypatch: pytest.MonkeyPatch):
    made: list[Settings] = []
    drain = Relay.drain

    async def spied(relay: Relay, **options: Any) -> Any:
        made.append(relay.settings)
        return await drain(relay, **options)

    monkeypatch.setattr(Relay, "drain", spied)
    monkeypatch.setenv("POSTROOM_REVIVE_AFTER", '{"a.*": "1m"}')
    flags = ["--batch-size", "7", "--retry", "fixed 1s max=2", "--retention", "1d", "--no-enabled", "--workers", "none"]
    tables = ["--on-dead", '{"audit.*": "continue"}', "--latest-only", '["prices.*"]', "--timeout", "5s"]
    read("drain", "--publisher", "memory:", *flags, *tables)
    expected = Settings.of(
        batch_size=7, retry="fixed 1s max=2", retention="1d", enabled=False, on_dead={"audit.*": "continue"},
        latest_only=["prices.*"], revive_after={"a.*": "1m"},
    )  # fmt: skip
    assert made == [expected]


# --- for people at a terminal


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_on_a_narrow_terminal_ids_are_whole(monkeypatch: pytest.MonkeyPatch):
    terminal, id = Terminal(), new_id()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    output.print_table(["id", "error"], [[id, "[bold]long " * 20]])
    assert id in terminal.getvalue()
    assert "[bold]" in terminal.getvalue()
    assert "…" in terminal.getvalue()


def test_on_a_terminal_json_is_indented(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    output.print_json({"a": 1})
    assert terminal.getvalue() == '{\n  "a": 1\n}\n'


def test_progress_is_shown_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    with output.progress("reviving") as tell:
        assert tell is None
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.progress("reviving") as tell:
        assert tell is not None
        tell(1, 2)
    assert "reviving" in terminal.getvalue()


@pytest.mark.parametrize(
    ("length", "text"),
    [(None, None), (0.4, "0s"), (-3, "0s"), (59.9, "59s"), (3725, "1h2m"), (90_061, "1d1h"), (61, "1m1s")],
)
def test_ages_are_short(length: float | None, text: str | None):
    assert output.age(length) == text


# --- demo


def test_the_demo_gets_its_options_and_gives_its_status(monkeypatch: pytest.MonkeyPatch, place: Path):
    given: dict[str, Any] = {}

    def demo(**options: Any) -> int:
        given.update(options)
        return 1

    monkeypatch.setattr("postroom.demo.run", demo)
    assert run("demo", "--seed", "7", "--keep", "folder", "--json").exit_code == 1
    assert given == {"seed": 7, "json_output": True, "keep": Path("folder")}


# --- real processes


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "postroom", *arguments]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **{"stdout": subprocess.PIPE, **options})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_delivers_until_a_signal_and_ends_well(place: Path, number: signal.Signals):
    add("orders", {"n": 1}, key="a")
    out = place / "out.jsonl"
    relay = start("relay", "--store", STORE, "--route", f"orders=file:{out}", "--publisher", "stdout:")
    try:
        eventually(lambda: out.exists() and out.read_text() != "")
        relay.send_signal(number)
        stdout, stderr = relay.communicate(timeout=60)
    finally:
        relay.kill()
    assert (relay.returncode, stdout) == (0, "")
    assert f"serving outbox 'default' in {STORE}: orders → file:{out}, * → stdout:" in stderr
    assert "Traceback" not in stderr
    status = read("status")
    assert (status["relays"], status["slots_owned"], status["counts"]["pending"]) == ([], 0, 0)


def test_a_relay_tells_the_name_of_a_hook_and_not_its_url(place: Path):
    """Such a URL is a secret itself."""
    add("other", {}, key="a")
    secret = "https://hooks.invalid/services/T0/hush-hush"
    routes = ("--route", f"orders={secret}#name=alerts", "--route", f"mail={secret}#name=h")
    relay = start("relay", "--store", STORE, *routes, "--publisher", f"file:{place / 'out.jsonl'}")
    try:
        eventually(lambda: (place / "out.jsonl").exists())
        relay.send_signal(signal.SIGTERM)
        _, stderr = relay.communicate(timeout=60)
    finally:
        relay.kill()
    assert "orders → alerts, mail → h, * → file:" in stderr
    assert "hush" not in stderr


def test_with_stdout_the_messages_and_the_report_do_not_mix(shop: dict[str, Message]):
    drain = start("--store", STORE, "drain", "--publisher", "stdout:")
    stdout, stderr = drain.communicate(timeout=60)
    assert drain.returncode == 1  # the key on hold
    assert [json.loads(line)["topic"] for line in stdout.splitlines()] == ["mail"]
    assert "delivered 1" in stderr


def test_a_reader_that_goes_away_is_no_error(shop: dict[str, Message]):
    reading, writing = os.pipe()
    os.close(reading)
    listing = start("--store", STORE, "ls", stdout=writing)
    os.close(writing)
    _, stderr = listing.communicate(timeout=60)
    assert (listing.returncode, stderr) == (141, "")


def test_a_terminal_that_knows_few_letters_gets_escapes(shop: dict[str, Message]):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    id = shop["delivered"].id
    for options, part in (["--json"], r"M\u00fcller"), ([], r"M\u00fcller"):
        showing = start("--store", STORE, "show", id, *options, env=environment)
        stdout, _ = showing.communicate(timeout=60)
        assert (showing.returncode, part in stdout) == (0, True)


def test_a_failing_process_shows_one_line(place: Path):
    failing = start("status", "--store", STORE)
    stdout, stderr = failing.communicate(timeout=60)
    assert (failing.returncode, stdout, len(stderr.splitlines())) == (3, "", 1)


# --- the documentation


def sections(name: str) -> dict[str, str]:
    """The text of a page by its headings."""
    parts = re.split(r"^## (.+)$", (DOCS / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def flags_of(command: click.Command) -> set[str]:
    """Of a group within the program, those of its commands too."""
    if isinstance(command, click.Group) and command is not program:
        return {flag for each in command.commands.values() for flag in flags_of(each)}
    options = [item for item in command.params if isinstance(item, click.Option)]
    return {flag for option in options for flag in [*option.opts, *option.secondary_opts]}


def documented(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `-")]
    return {flag for row in rows for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row)}


def test_every_command_and_option_is_documented_and_no_other():
    page = sections("cli.md")
    assert documented(page["postroom"]) == flags_of(program) | {"--help"}
    settings = documented(page["Settings of relay and drain"])
    for name, command in program.commands.items():
        own = flags_of(command) - flags_of(program)
        assert documented(page[f"postroom {name}"]) == (own - settings if name in ("relay", "drain") else own), name
    assert settings < flags_of(program.commands["relay"]) & flags_of(program.commands["drain"])
    described = {heading.removeprefix("postroom ") for heading in page if heading.startswith("postroom ")}
    assert described == set(program.commands)


def test_every_exit_status_is_documented():
    from postroom.cli import failure

    table = sections("cli.md")["Exit status"]
    numbers = {value for value in vars(failure).values() if isinstance(value, int) and not isinstance(value, bool)}
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == numbers


@pytest.mark.parametrize(
    ("kind", "heading"), [(Configuration, "The outbox, and where messages go"), (Settings, "The relay")]
)
def test_every_setting_is_documented_with_its_default(kind: type, heading: str):
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", sections("configuration.md")[heading], re.MULTILINE)
    items = [item for item in fields(kind) if "about" in item.metadata]
    assert rows == [(item.name, spelled(None if item.default is MISSING else item.default)) for item in items]


def test_the_flags_are_documented_with_their_defaults():
    table = sections("cli.md")["Settings of relay and drain"]
    rows = re.findall(r"^\| `--([\w-]+)`.*? \| `([^`]+)` \|", table, re.MULTILINE)
    assert rows == [(item.name.replace("_", "-"), spelled(item.default)) for item in fields(Settings)]


def test_the_example_of_a_configuration_works(place: Path):
    [example] = re.findall(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(encoding="utf-8"), re.DOTALL)
    (place / "postroom.toml").write_text(example)
    configuration = load(environ={})
    assert configuration.store == "sqlite:///app.db"
    assert configuration.settings.retention == 7 * 86_400
    assert configuration.settings.on_dead.value_for("audit.login") == "continue"
