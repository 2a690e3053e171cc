"""kill -9 between every two steps of a real relay process on a real database file."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from postroom import Message, Outbox

VICTIM = Path(__file__).with_name("victim.py")
MESSAGES = [
    *[("orders", f"key-{n % 4}", None) for n in range(24)],
    ("orders", "key-1", "once"),
    ("orders", "key-1", None),
    ("orders", "bad", None),
    ("orders", "bad", "always"),
    ("orders", "bad", None),
    *[("mails", None, None) for _ in range(4)],
    ("mails", None, "once"),
]


def write_backlog(database: Path) -> list[Message]:
    outbox = Outbox()
    connection = sqlite3.connect(database)
    messages = [Message(topic=topic, payload=b"{}", key=key, type=type) for topic, key, type in MESSAGES]
    outbox.add_many(connection, messages)
    connection.commit()
    outbox.add_many(connection, [Message(topic="orders", payload=b"phantom", key="key-1")])
    connection.rollback()
    connection.close()
    return messages


def run_relay(database: Path, output: Path, moment: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(VICTIM), str(database), str(output), str(moment)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def check(messages: list[Message], database: Path, output: Path) -> None:
    lines = [json.loads(line) for line in output.read_text().splitlines() if line.strip()]
    delivered = [line["id"] for line in lines]
    first = list(dict.fromkeys(delivered))
    expected = [message for message in messages if message.type != "always"]
    with sqlite3.connect(database) as connection:
        dead = {row[0] for row in connection.execute("SELECT id FROM postroom_dead")}
        left = [
            row[0] for table in ("outbox", "parked") for row in connection.execute(f"SELECT id FROM postroom_{table}")
        ]
    connection.close()
    refused = next(message for message in messages if message.type == "always")
    behind = messages[messages.index(refused) + 1]
    assert dead == {refused.id}, "the refused message is dead, and nothing else"
    assert left == [behind.id], "what is behind the dead message waits, and nothing else"
    assert set(first) == {message.id for message in expected} - {behind.id}, "all others are delivered, none is phantom"
    lanes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for message in expected:
        if message.key is not None:
            lanes[message.topic, message.key].append(message.id)
    for lane in lanes.values():
        assert [id for id in first if id in lane] == [id for id in lane if id != behind.id], "in order within its key"


def test_a_relay_that_lives_delivers_everything_once(tmp_path: Path) -> None:
    database, output = tmp_path / "app.db", tmp_path / "out.jsonl"
    messages = write_backlog(database)
    assert run_relay(database, output, -1).returncode == 0
    check(messages, database, output)
    ids = [json.loads(line)["id"] for line in output.read_text().splitlines()]
    assert len(ids) == len(set(ids))


PARTS = 6


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_or_reordered_wherever_the_relay_is_killed(tmp_path: Path, part: int) -> None:
    """Visits every moment (each part every sixth): kills a relay there, lets another one finish, and compares with what
    was committed."""
    moment, killed = part, 0
    while True:
        folder = tmp_path / str(moment)
        folder.mkdir()
        database, output = folder / "app.db", folder / "out.jsonl"
        messages = write_backlog(database)
        victim = run_relay(database, output, moment)
        if victim.returncode == 0:
            break  # it got to the end before the moment came
        assert victim.returncode == -signal.SIGKILL, victim.stderr
        killed += 1
        survivor = run_relay(database, output, -1)
        assert survivor.returncode == 0, survivor.stderr
        check(messages, database, output)
        moment += PARTS
    assert killed > 3
