"""A drain with `claim="rows"` that dies at a chosen moment: `python -m … URL FOLDER MOMENT` (-1: it lives)."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from postroom import Message, MessageRejected, Outbox, Relay
from postroom.publishers.callable import CallablePublisher
from postroom.relay.wiring import store_for
from postroom.testing.faults import Faults
from tests.acceptance.servers_rows.worker import Hands

SHORT, LONG = "1s", "15s"
"""How long the heirs of one that dies must wait, and of one that lives."""


class PickyHands(Hands):
    async def work(self, message: Message) -> None:
        if message.type == "once" and message.attempt == 1:
            raise MessageRejected("not yet")
        await super().work(message)


def main() -> None:
    url, folder, moment = sys.argv[1:]
    logging.disable(logging.WARNING)
    faults = Faults(at=int(moment) if int(moment) >= 0 else None)
    relay = Relay(
        faults.store(store_for(url, Outbox())),
        faults.publisher(CallablePublisher(PickyHands(Path(folder)).work)),
        claim="rows",
        lease_ttl=SHORT if int(moment) >= 0 else LONG,
        batch_size=8,
        retry="immediate",
    )
    asyncio.run(relay.drain())
    print(faults.moments)


if __name__ == "__main__":
    main()
