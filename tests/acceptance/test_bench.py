"""The measuring itself, as it is called: our own part of `python -m bench peers`, which needs no other system."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import server_url


@pytest.mark.timeout(240)
def test_ours_can_be_measured_beside_peers() -> None:
    server_url("postgresql-15")
    command = [sys.executable, "-m", "bench", "peers", "--quick", "--rounds", "1", "--only", "postroom"]
    done = subprocess.run(
        [*command, "--measures", "drain,enqueue,overlap"], capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    drain, enqueue = report["measures"]
    assert all(measure["results"]["postroom"]["value"] > 0 for measure in (drain, enqueue))
    assert "unfinished" not in drain
    overlap = report["behaviours"][0]["results"]["postroom"]
    assert (overlap["arrived_locked"], overlap["lost"]) == ("1, then 2", 0)
