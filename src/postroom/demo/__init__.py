"""`postroom demo`: a small shop, an outage and a kill -9, then the ledger."""

from __future__ import annotations

from pathlib import Path


def run(*, seed: int | None = None, json_output: bool = False, keep: Path | None = None) -> int:
    """Play it, print what came of it, and return the exit status: 0 if what Postroom promises held."""
    from .show import show  # here, because the demo's processes import this package too and need nothing of the show

    return show(seed=seed, json_output=json_output, keep=keep)
