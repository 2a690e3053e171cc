"""`python -m tests.services install | start | stop | status`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tests import services
from tests.services import lifetime
from tests.services.registry import SERVERS


def install() -> int:
    """Before the tests, which may not take as long as an installation does. What cannot be had they will say."""
    for server in SERVERS.values():
        if not os.environ.get(server.variable):
            with suppress(services.ServerUnavailable):
                server.install()
    return 0


def start() -> int:
    failed = 0
    with services.in_use():
        lifetime.keep()
        for name in services.NAMES:
            try:
                print(f"{name}: {services.version(name)}, {services.url(name)}")
            except services.ServerUnavailable as error:
                print(error, file=sys.stderr)
                failed += 1
    return 1 if failed else 0


def stop() -> int:
    for name in lifetime.stop():
        print(f"{name}: stopped")
    return 0


def status() -> int:
    for name, server in SERVERS.items():
        print(f"{name}: {server.status()}")
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["install"]:
            return install()
        case ["start"]:
            return start()
        case ["stop"]:
            return stop()
        case ["status"]:
            return status()
    print("usage: python -m tests.services install | start | stop | status", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
