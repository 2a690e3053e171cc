"""Nobody stays behind when the harness is gone, however it went."""

from __future__ import annotations

import os
import threading


def end_with_parent() -> None:
    """The other end of standard input is the harness: when it is gone, so are we."""

    def wait() -> None:
        os.read(0, 1)  # nothing is ever said there, so this is the end
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
