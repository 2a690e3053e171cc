"""The servers that tests and benchmarks use, started privately: `python -m tests.services start | stop`."""

from __future__ import annotations

import sys
from typing import Protocol


class Server(Protocol):
    """A private instance: its own data folder under `.services/`, its own port, loopback only."""

    def start(self) -> str:
        """Start it unless it runs already, and return its URL once it answers."""
        ...

    def stop(self) -> None:
        """Stop it, by its own process id, if it runs."""
        ...


SERVERS: dict[str, Server] = {}


def start() -> None:
    for name, server in SERVERS.items():
        print(f"{name}: {server.start()}")
    if not SERVERS:
        print("Nothing to start: the tests run on SQLite, which needs no server.")


def stop() -> None:
    for name, server in SERVERS.items():
        server.stop()
        print(f"{name}: stopped")
    if not SERVERS:
        print("Nothing to stop: the tests run on SQLite, which needs no server.")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["start"]:
            start()
        case ["stop"]:
            stop()
        case _:
            print("usage: python -m tests.services start | stop", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
