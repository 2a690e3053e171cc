"""Measure something: `python -m bench drain --store sqlite`. The last line printed is one JSON object.

Without the name of a bench, all are measured, one after the other, and a table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
from contextlib import ExitStack
from typing import Any

import sqlalchemy

import postroom
from postroom.relay.process import collect_garbage_less
from tests import services

from . import drains
from .brokers import BROKERS
from .database import Database, Unmeasurable
from .doorbell import doorbell
from .fleet import scale
from .interleave import interleave
from .memory import memory
from .mysql import MySQL
from .ownloop import ownloop
from .peers import command as peers
from .postgresql import PostgreSQL
from .publish import hotpublish, publish
from .run import Bench, Run
from .slowtask import slowtask
from .sqlite import SQLite
from .waits import idle, latency
from .writes import write

STORES: dict[str, type[Database]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}

BENCHES = {
    "drain": Bench(prepare=drains.drain, messages=200_000, rounds=5, quick_messages=40_000, quick_rounds=3),
    "hotkey": Bench(prepare=drains.hotkey, messages=200_000, rounds=5, quick_messages=40_000, quick_rounds=3),
    "heldxmin": Bench(prepare=drains.heldxmin, messages=200_000, rounds=5, quick_messages=40_000, quick_rounds=3),
    "heldkey": Bench(prepare=drains.heldkey, messages=100_000, rounds=5, quick_messages=30_000, quick_rounds=3),
    "backlog": Bench(prepare=drains.backlog, messages=1_000_000, rounds=3, quick_messages=200_000, quick_rounds=1),
    "fetch": Bench(prepare=drains.fetch, messages=50_000, rounds=5, quick_messages=15_000, quick_rounds=3),
    "slowtask": Bench(prepare=slowtask, messages=20_000, rounds=9, quick_messages=10_000, quick_rounds=3),
    "later": Bench(prepare=drains.later, messages=100_000, rounds=5, quick_messages=30_000, quick_rounds=3),
    "write": Bench(prepare=write, messages=200, rounds=25, quick_messages=200, quick_rounds=9),
    "doorbell": Bench(
        prepare=doorbell,
        messages=3,
        rounds=7,
        quick_messages=1,
        quick_rounds=2,
        stores=frozenset({"postgresql"}),
        why_not="only PostgreSQL has a doorbell that writers ring",
    ),
    "latency": Bench(prepare=latency, messages=50, rounds=4, quick_messages=10, quick_rounds=2),
    "idle": Bench(
        prepare=idle,
        messages=20,
        rounds=3,
        quick_messages=10,
        quick_rounds=1,
        stores=frozenset({"postgresql", "mysql"}),
        why_not="no server that counts statements is asked",
    ),
    "publish": Bench(prepare=publish, messages=0, rounds=5, quick_messages=0, quick_rounds=3, to=frozenset(BROKERS)),
    "hotpublish": Bench(
        prepare=hotpublish, messages=0, rounds=5, quick_messages=0, quick_rounds=3, to=frozenset(BROKERS)
    ),
    "ownloop": Bench(
        prepare=ownloop,
        messages=0,
        rounds=5,
        quick_messages=0,
        quick_rounds=3,
        stores=frozenset({"postgresql"}),
        why_not="the loop is written for PostgreSQL",
        to=frozenset({"kafka"}),
    ),
    "memory": Bench(prepare=memory, messages=1_000_000, rounds=1, quick_messages=100_000, quick_rounds=1),
    "scale": Bench(prepare=scale, messages=40_000, rounds=3, quick_messages=10_000, quick_rounds=1),
}

ALL = "all"
OTHERS = f"""
{ALL:9} All of the above, on the stores and to the brokers of the proof, and one table of them. Only --quick can be
          added. Takes hours.
peers     Postroom beside other systems; it has options of its own: python -m bench peers --help"""


def main() -> None:
    if sys.argv[1:2] == ["peers"]:
        peers.main(sys.argv[2:])
        return
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.bench == ALL:
        if arguments.store or arguments.to or arguments.messages or arguments.rounds:
            parser.error(f"{ALL} has its own stores, brokers and amounts: only --quick can be added")
        measure_all(quick=arguments.quick)
        return
    bench, store = BENCHES[arguments.bench], arguments.store or "sqlite"
    if store not in bench.stores:
        parser.error(f"{arguments.bench} cannot be measured on {store}: {bench.why_not}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    collect_garbage_less()  # as `postroom relay` does, here for all that is compared
    if bool(arguments.to) != bool(bench.to):
        parser.error(f"{arguments.bench} {'needs --to, a broker' if bench.to else 'goes to no broker: leave --to out'}")
    if arguments.to and arguments.to not in bench.to:
        parser.error(f"{arguments.bench} can go to {', '.join(bench.to)} only")
    amount = BROKERS[arguments.to] if arguments.to else bench
    messages = arguments.messages or (amount.quick_messages if arguments.quick else amount.messages)
    rounds = arguments.rounds or (bench.quick_rounds if arguments.quick else bench.rounds)
    try:
        result = measure(bench, STORES[store], messages, rounds, arguments.to)
    except (Unmeasurable, services.ServerUnavailable) as error:
        parser.error(str(error))
    print(json.dumps({"name": arguments.bench, **result}))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="\n".join(f"{name:9} {bench.about}" for name, bench in BENCHES.items()) + OTHERS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = [*BENCHES, ALL]
    parser.add_argument("bench", choices=choices, default=ALL, nargs="?", metavar="bench", help="one of those below")
    parser.add_argument("--store", choices=list(STORES), default="", help="sqlite, if none is named")
    parser.add_argument("--to", choices=list(BROKERS), default="", help="for publish, hotpublish and ownloop")
    parser.add_argument("--messages", type=positive, help="how much to measure with; each bench has its own default")
    parser.add_argument("--rounds", type=positive, help="how often")
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not a result")
    return parser


def measure_all(*, quick: bool) -> None:
    from . import everything  # it draws in the proof, which no single bench needs

    everything.main(quick=quick)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def measure(bench: Bench, make_database: type[Database], messages: int, rounds: int, to: str) -> dict[str, Any]:
    with services.in_use(), make_database() as database, ExitStack() as stack:
        run = Run(database=database, messages=messages, to=to, stack=stack)
        result = interleave(bench.prepare(run), rounds)
        return {
            **result,
            "store": database.store,
            **({"to": to} if to else {}),
            "messages": messages,
            "rounds": rounds,
            "versions": versions(database),
            "fsync": database.fsync(),
        }


def versions(database: Database) -> dict[str, str]:
    return {
        "postroom": postroom.__version__,
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        **database.versions(),
    }


if __name__ == "__main__":
    main()
