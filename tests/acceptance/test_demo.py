"""The demo as a new user runs it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

KEYS = {"committed", "delivered", "lost", "phantom", "reordered", "duplicates", "dead", "seed"}


def test_the_demo_keeps_its_promises_and_says_so_in_json(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    command = [sys.executable, "-m", "postroom", "demo", "--json", "--seed", "1", "--keep", str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert finished.returncode == 0, finished.stdout + finished.stderr

    (line,) = finished.stdout.splitlines()
    ledger = json.loads(line)
    assert ledger.keys() >= KEYS
    assert (ledger["lost"], ledger["phantom"], ledger["reordered"], ledger["seed"]) == (0, 0, 0, 1)
    assert ledger["delivered"] + ledger["dead"] == ledger["committed"] > 2000
    assert ledger["dead"] == 7
    assert ledger["retried"] == 2
    assert (ledger["killed_relays"], ledger["killed_writers"]) == (1, 1)

    # What it says is what is there.
    assert ledger["delivered"] == len(accepted(folder / "deliveries.jsonl"))
    with sqlite3.connect(folder / "shop.db") as database:
        assert database.execute("SELECT count(*) FROM truth").fetchone() == (ledger["committed"],)
        assert database.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM postroom_dead").fetchone() == (7,)
    database.close()


def accepted(record: Path) -> set[str]:
    notes = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return {note["id"] for note in notes if note["outcome"] == "accepted"}
