"""Tasks from the command line: `postroom drain --app module:tasks`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom import Message, Outbox
from postroom.message import TASKS_TOPIC
from tests.waiting import LONG, eventually

APP = """
from postroom import Outbox, Tasks

tasks = Tasks(Outbox({name!r}))
nothing = 1


@tasks.task("say")
def say(payload: str) -> None:
    with open("said", "a") as file:
        file.write(payload)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "postroom", "--store", "sqlite:///shop.db", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with start(folder, "drain", *arguments) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "work.py").write_text(APP.format(name="default"))
    (tmp_path / "shop" / "other.py").write_text(APP.format(name="other"))
    return tmp_path


def schedule(folder: Path, outbox: Outbox, payload: str) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        outbox.add(connection, Message(topic=TASKS_TOPIC, type="say", payload=payload))


def test_tasks_are_found_from_where_the_command_is_given(folder: Path) -> None:
    schedule(folder, Outbox(), "hello")
    result = run(folder, "--app", "shop.work:tasks", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["delivered"] == 1
    assert (folder / "said").read_text() == "hello"


def test_they_may_be_in_the_configuration_and_have_an_outbox_of_their_own(folder: Path) -> None:
    schedule(folder, Outbox("other"), "hello")
    (folder / "postroom.toml").write_text('app = "shop.other:tasks"\n')
    assert json.loads(run(folder, "--json").stdout)["delivered"] == 1


def test_a_relay_names_the_outbox_that_it_serves(folder: Path) -> None:
    schedule(folder, Outbox("other"), "hello")
    with start(folder, "relay", "--app", "shop.other:tasks") as relay:
        try:
            eventually((folder / "said").exists)
            relay.terminate()
            _, stderr = relay.communicate(timeout=LONG)
        finally:
            relay.kill()
    assert (relay.returncode, (folder / "said").read_text()) == (0, "hello")
    assert "serving outbox 'other' in sqlite:///shop.db: tasks of shop.other:tasks" in stderr


def test_a_relay_may_have_destinations_and_tasks(folder: Path) -> None:
    schedule(folder, Outbox(), "hello")
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        Outbox().add(connection, "orders", {"id": 1})
    result = run(folder, "--app", "shop.work:tasks", "--publisher", "stdout:")
    assert result.returncode == 0
    assert '"topic": "orders"' in result.stdout.replace('":"', '": "')
    assert (folder / "said").exists()


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("shop.work", "write module:object, as in shop.tasks:tasks"),
        (":tasks", "write module:object, as in shop.tasks:tasks"),
        ("shop.none:tasks", "cannot be loaded: No module named 'shop.none'"),
        ("shop.work:others", "has no attribute 'others'"),
        ("shop.work:nothing", "is a int; --app needs a postroom.Tasks"),
    ],
)
def test_an_app_that_is_none_is_refused(folder: Path, app: str, words: str) -> None:
    result = run(folder, "--app", app)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_the_outbox_must_be_the_one_that_they_are_scheduled_in(folder: Path) -> None:
    result = run(folder, "--app", "shop.other:tasks", "--prefix", "mine_")
    assert result.returncode == 2
    assert "leave out the outbox's name, prefix and schema" in result.stderr


def test_without_tasks_or_a_destination_there_is_nothing_to_do(folder: Path) -> None:
    result = run(folder)
    assert result.returncode == 2
    assert "--app for tasks alone" in result.stderr
