"""For a process that is nothing but a relay."""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 50)


def collect_garbage_less() -> None:
    """A relay makes thousands of objects a second and lets go of them in order, without cycles. Python's collector
    looks at them again and again in vain, which costs a fifth of the time. An application decides for itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
