"""Who is compared, and what each can do."""

from __future__ import annotations

from dataclasses import dataclass

RATES = frozenset({"drain", "one-key", "backlog", "snapshot"})
BEHAVIOURS = frozenset({"outage", "kill", "overlap"})
DELAYS = frozenset({"latency", "trickle"})
EVERYTHING = RATES | DELAYS | BEHAVIOURS | {"enqueue", "enqueue-worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    driver: str
    """Its module in `drivers`, and its file in `requirements`."""
    ordered: bool
    """Whether it keeps the order of a key."""
    does: frozenset[str] = EVERYTHING
    slow: bool = False
    """It gets fewer messages, and of a large backlog only some seconds."""
    streams: bool = False
    """It reads the log of the database: what it has not read yet cannot be copied with the database."""
    java: bool = False


SYSTEMS = {
    system.name: system
    for system in (
        System(name="postroom", driver="postroom", ordered=True, does=EVERYTHING | {"session"}),
        System(name="faststream-outbox", driver="faststream_outbox", ordered=False, does=EVERYTHING | {"session"}),
        System(name="txoutbox", driver="txoutbox", ordered=True),
        System(name="pgqueuer", driver="pgqueuer", ordered=False),
        System(name="procrastinate", driver="procrastinate", ordered=True, slow=True),
        System(
            name="debezium",
            driver="debezium",
            ordered=True,
            does=RATES | DELAYS,
            streams=True,
            java=True,
        ),
    )
}
