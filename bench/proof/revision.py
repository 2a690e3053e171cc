"""Which state of this repository a run was made of."""

from __future__ import annotations

import subprocess
from pathlib import Path

MEASURED = ("src", "bench", "chaos", "tests", "requirements", "pyproject.toml")
"""What a run depends on. That its result changes the page does not matter."""


def revision(root: Path) -> str | None:
    """Its commit, and whether what is measured differs from that. None outside of git."""
    try:
        commit = _git(root, "describe", "--always")
        changes = _git(root, "status", "--porcelain", "--", *MEASURED)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changes else commit


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
