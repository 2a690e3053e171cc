"""The examples for brokers, run as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "brokers"


def run_example(name: str, folder: Path, *arguments: str) -> str:
    """What it prints; it must end well, and without a warning."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
