"""kill -9 between any two steps of a relay that claims rows."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.acceptance.servers_rows.worker import Work
from tests.acceptance.servers_rows.workshop import PROJECT, Workshop

MOMENTS = 24
"""From the start to beyond the first settlement."""
MOST_IN_HAND = 16
"""Two batches."""


def drain(workshop: Workshop, moment: int = -1) -> int:
    module = "tests.acceptance.servers_rows.victim"
    command = [sys.executable, "-m", module, workshop.database.url, str(workshop.folder), str(moment)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


@pytest.mark.timeout(600)
def test_nothing_is_lost_wherever_relays_are_killed(workshop: Workshop) -> None:
    """Each relay dies one moment later than the one before, and leaves its work to the next."""
    ids: list[str] = []
    for moment in range(MOMENTS):
        ids += workshop.add([Work()] * 10, keys=3, once=[4, 5])
        assert drain(workshop, moment) == -signal.SIGKILL
    assert drain(workshop) == 0
    done = workshop.done()
    assert set(ids) == set(done)
    assert not workshop.left()
    assert sum(times - 1 for times in done.values()) <= MOMENTS * MOST_IN_HAND
