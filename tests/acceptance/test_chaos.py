"""A minute of `python -m chaos` on each store; `make chaos` takes longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import server_url

SERVERS = {"sqlite": (), "postgresql": ("postgresql-15", "kafka"), "mysql": ("mariadb", "rabbitmq")}
DESTINATIONS = {"sqlite": "file", "postgresql": "kafka", "mysql": "amqp"}
ZERO = (
    "lost", "phantom", "reordered", "stale", "dead_by_outage", "undead", "corrupted", "waiting",
    "duplicates_unexplained",
)  # fmt: skip


def run(folder: Path, store: str, *options: str) -> tuple[int, dict[str, Any]]:
    for server in SERVERS[store]:
        server_url(server)
    command = [sys.executable, "-m", "chaos", "--store", store, "--to", DESTINATIONS[store], "--keep", str(folder)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said, told = process.communicate(timeout=380)
        finally:
            process.terminate()  # which ends all that it has started
    assert said, told
    return process.returncode, json.loads(said.splitlines()[-1])


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("store", "seed"), [("sqlite", 1), ("postgresql", 1), ("mysql", 1)])
def test_chaos_loses_invents_and_reorders_nothing(tmp_path: Path, store: str, seed: int) -> None:
    status, report = run(tmp_path / "kept", store, "--minutes", "1", "--seed", str(seed))
    assert (status, report["violations"], report["mishaps"]) == (0, [], []), report
    assert {name: report[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
    assert report["committed"] == report["delivered"] + report["dead"]
    assert report["delivered"] > 500
    assert sum(fault["happened"] for fault in report["faults"]) >= 5
    assert (report["store"], report["to"], report["seed"]) == (store, DESTINATIONS[store], seed)


@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    ("broken", "seed", "brings_it_out", "tries"),
    [
        ("settle-first", 6, "down", 1),
        ("ignore-holds", 19, "refuse", 1),
        ("count-outage", 19, "down", 1),
        ("no-fencing", 28, "freeze relay", 2),
    ],
)
def test_chaos_finds_an_engine_that_is_broken(
    tmp_path: Path, broken: str, seed: int, brings_it_out: str, tries: int
) -> None:
    """By these seeds there is what brings it out. The fifth, `naive-order`, makes no difference on SQLite. What a relay
    has under way when it is frozen is chance, and may be too little: then it is frozen once more."""
    for left in reversed(range(tries)):
        kept = tmp_path / str(left)
        status, report = run(kept, "sqlite", "--minutes", "0.5", "--seed", str(seed), "--break", broken)
        assert brings_it_out in [fault["kind"] for fault in report["faults"]]
        if (status, report["caught"]) == (1, True):
            break
        assert left, report
