"""A relay process. Its clock may be wrong, so nothing of Postroom is imported before that is settled."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .parent import end_with_parent

BATCH = 20
WORKERS = 4
IN_FLIGHT = WORKERS * 2 * BATCH
"""Messages that a relay may have under way: two batches for each of its workers."""
AT_WORK = "at work"
"""Said as soon as it has slots."""
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "workers": WORKERS,
    "lease_ttl": "3s",
    "publish_timeout": "1s",
    "breaker_cap": "1s",
    "retry": {"poison": ["0s", "100ms"], "*": ["0s", "500ms", "1s", "2s", "4s"]},
    "on_dead": {"poison": "continue"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    url: str
    to: str
    switches: str
    """A folder in which a file named after a trouble means that it is there."""
    clock_is_wrong_by: float = 0.0
    broken: str | None = None


async def run(orders: Orders) -> None:
    from postroom import Outbox, Relay, registry
    from postroom.events import Event, LeasesTaken
    from postroom.relay.wiring import store_for

    from . import breaks
    from .troubles import Troubled

    publisher = Troubled(
        registry.load(registry.PUBLISHERS, registry.scheme_of(orders.to))(orders.to), Path(orders.switches)
    )
    store = store_for(orders.url, Outbox())
    if orders.broken is not None:
        store, publisher = breaks.BREAKS[orders.broken].apply(store, publisher)

    class Teller:
        def notice(self, event: Event) -> None:
            if isinstance(event, LeasesTaken):
                print(AT_WORK, flush=True)

    await Relay(store, publisher, observers=[Teller()], **SETTINGS).run(handle_signals=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the relay listens itself
    end_with_parent()
    orders = Orders(**json.loads(sys.argv[1]))
    if orders.clock_is_wrong_by:
        from tests.acceptance.servers.wrong_clock import set_clock_wrong

        set_clock_wrong(orders.clock_is_wrong_by)
    asyncio.run(run(orders))


if __name__ == "__main__":
    main()
