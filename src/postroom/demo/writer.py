"""A process of the shop's: it places orders until its part of the plan is done.

`python -m postroom.demo.writer DATABASE SEED WRITER FIRST CRASH_AT`: begin with the order numbered FIRST; stop in the
middle of the transaction of the order numbered CRASH_AT and wait to be killed (-1: never).
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from .child import obey, report, vanish
from .plan import PlannedOrder, draw
from .shop import SAID, SoldOut, in_transaction, open_shop, pay, place

BREATH = 0.005
"""Seconds between two orders at least: somebody who never lets go of SQLite's one lock starves all others."""


def main(database: Path, seed: int, writer: int, first: int, crash_at: int) -> None:
    engine = open_shop(database)
    orders = draw(seed).writers[writer]
    started = threading.Event()
    obey(lambda line: started.set(), vanish)
    report("ready")
    started.wait()
    begin = time.monotonic() - (orders[first].at if first else 0.0)
    for number in range(first, len(orders)):
        time.sleep(max(BREATH, begin + orders[number].at - time.monotonic()))
        _serve(engine, orders[number], crashes=number == crash_at)
    report("done")


def _serve(engine: Engine, planned: PlannedOrder, *, crashes: bool) -> None:
    said: list[str] = []
    savepoints = int(planned.gift == "sold out")
    try:
        in_transaction(engine, partial(_place_and_crash if crashes else place, planned=planned), said)
        in_transaction(engine, partial(pay, planned=planned), said)
    except SoldOut:
        report("rolled back", said=said, savepoints=savepoints)
    else:
        report("committed", said=said, savepoints=savepoints)


def _place_and_crash(session: Session, planned: PlannedOrder) -> None:
    """Everything is written and flushed, nothing is committed, and then the lights go out."""
    place(session, planned)
    session.flush()
    report("in the middle", said=session.info[SAID])
    time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:6]))
