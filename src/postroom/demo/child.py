"""What the demo's processes have in common: they report to their parent line by line, and never outlive it."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any


def report(event: str, **details: Any) -> None:
    """One line of JSON on standard output, which the parent reads."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


def obey(order: Callable[[str], object], at_end: Callable[[], object]) -> None:
    """Call back, on a thread, with each line from the parent, and when there is no parent any more."""

    def listen() -> None:
        for line in sys.stdin:
            order(line.strip())
        at_end()

    threading.Thread(target=listen, name="parent", daemon=True).start()


def vanish() -> None:
    """End at once, without a word, as a process does whose machine is switched off."""
    os._exit(0)
