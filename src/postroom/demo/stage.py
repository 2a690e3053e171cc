"""The play: who starts when, what breaks when, and when it is over."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cast import Cast, Player
from .plan import CUSTOMERS, PRODUCTS, Plan, customer_name, product_name
from .screen import Screen
from .shop import furnish, open_shop, url_of
from .witness import Witness

DATABASE = "shop.db"
RECORD = "deliveries.jsonl"

RELAYS = ("relay 1", "relay 2")
NEW_RELAY = "relay 3"

DEADLINE = 60.0
LOOK_EVERY = 0.1
PATIENCE = 3.0
"""Seconds after the outage by which a relay is killed, however little it does."""
MOURNING = 0.3
"""Seconds between the death of a relay and the start of another."""


@dataclass(slots=True)
class Happenings:
    """What went on, told by the processes themselves."""

    said: set[str] = field(default_factory=set[str])
    """Ids of all messages that were added, also in transactions that came to nothing."""
    rolled_back: int = 0
    savepoints_rolled_back: int = 0
    killed_writers: int = 0
    down_at: float = 0.0
    up_at: float = 0.0
    killed_relay: str | None = None
    in_time: bool = True

    @property
    def outage_seconds(self) -> float:
        return max(0.0, self.up_at - self.down_at)


class Stage:
    def __init__(self, plan: Plan, folder: Path, screen: Screen) -> None:
        self._database = folder / DATABASE
        self._record = folder / RECORD
        self.happenings = Happenings()
        self._plan = plan
        self._screen = screen
        self._witness = Witness(self._database, self._record)
        self._cast = Cast(folder, self._hear)
        self._once: set[str] = set()

    async def play(self) -> Happenings:
        try:
            async with asyncio.timeout(DEADLINE), self._cast:
                self._furnish()
                await self._act()
        except TimeoutError:
            self.happenings.in_time = False
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        finally:
            self._witness.close()
        return self.happenings

    def _furnish(self) -> None:
        engine = open_shop(self._database)
        furnish(engine, map(customer_name, range(CUSTOMERS)), map(product_name, range(PRODUCTS)))
        engine.dispose()

    async def _act(self) -> None:
        self._screen.say("starting a shop (3 processes), a destination and 2 relays")
        destination = await self._cast.start("destination", "destination", self._record, self._plan.seed)
        port = (await destination.expect("ready"))["port"]
        writers = [await self._start_writer(number) for number in range(len(self._plan.writers))]
        relays = [await self._start_relay(name, port) for name in RELAYS]
        for writer in writers:
            await writer.expect("ready")
        for relay in relays:
            await relay.expect("leases taken")
        self._screen.say("the shop opens: every order and its messages are committed in one transaction")
        async with asyncio.TaskGroup() as group:
            acts = [group.create_task(self._write(number, writer)) for number, writer in enumerate(writers)]
            acts.append(group.create_task(self._break_things(destination, relays, port)))
            group.create_task(self._watch(acts))

    # --- the shop

    async def _start_writer(self, number: int, first: int = 0, crash_at: int | None = None) -> Player:
        if crash_at is None:
            crash_at = self._plan.crash_at if number == self._plan.crashing_writer else -1
        arguments = (self._database, self._plan.seed, number, first, crash_at)
        return await self._cast.start(f"writer {number + 1}", "writer", *arguments)

    async def _write(self, number: int, writer: Player) -> None:
        writer.tell("go")
        if number == self._plan.crashing_writer:
            writer = await self._crash(number, writer)
        await writer.expect("done")

    async def _crash(self, number: int, writer: Player) -> Player:
        await writer.expect("in the middle")
        await writer.kill()
        self.happenings.killed_writers += 1
        self._screen.say(f"{writer.name} was killed in the middle of a transaction: nothing of that order may be sent")
        again = await self._start_writer(number, first=self._plan.crash_at, crash_at=-1)
        await again.expect("ready")
        again.tell("go")
        return again

    # --- what breaks

    async def _break_things(self, destination: Player, relays: list[Player], port: int) -> None:
        await asyncio.sleep(self._plan.outage_at)
        destination.tell("down")
        await destination.expect("down")
        self.happenings.down_at = time.time()
        self._screen.say("the destination is DOWN: connections are refused, the shop goes on", style="yellow")
        await asyncio.sleep(self._plan.outage_seconds)
        destination.tell("up")
        await destination.expect("up")
        self.happenings.up_at = time.time()
        self._screen.say("the destination is back", style="green")
        await self._kill_the_busy_one(relays)
        await asyncio.sleep(MOURNING)
        await (await self._start_relay(NEW_RELAY, port)).expect("ready")
        self._screen.say(f"{NEW_RELAY} has started and joins the work")

    async def _kill_the_busy_one(self, relays: list[Player]) -> None:
        """In the middle of the backlog: the one that has delivered enough of it first."""
        before, latest = self._witness.account.by_relay.copy(), time.monotonic() + PATIENCE
        while True:
            self._witness.read_record()
            progress = self._witness.account.by_relay - before
            busiest = max(relays, key=lambda relay: progress[relay.name])
            if progress[busiest.name] >= self._plan.kill_after or time.monotonic() > latest:
                break
            await asyncio.sleep(0.01)
        await busiest.kill()
        self.happenings.killed_relay = busiest.name
        waiting = self._witness.look().waiting
        self._screen.say(
            f"{busiest.name} was KILLED (SIGKILL) in the middle of its work; {waiting} messages wait", style="red"
        )

    async def _start_relay(self, name: str, port: int) -> Player:
        return await self._cast.start(name, "relay", url_of(self._database), port, name)

    # --- the end

    async def _watch(self, acts: list[asyncio.Task[None]]) -> None:
        """Until all has happened that was to happen, and nothing waits any more."""
        while True:
            self._cast.check()
            over = all(act.done() for act in acts)
            sight = self._witness.look()
            self._screen.show(sight, len(self._witness.delivered))
            if over and not sight.waiting:
                return
            await asyncio.sleep(LOOK_EVERY)

    # --- what the processes report

    def _hear(self, player: Player, report: dict[str, Any]) -> None:
        self.happenings.said.update(report.get("said", ()))
        self.happenings.savepoints_rolled_back += report.get("savepoints", 0)
        match report["event"]:
            case "rolled back":
                self.happenings.rolled_back += 1
            case "breaker opened":
                self._say_once(f"{player.name} notices: it waits and probes, and no message is charged for it")
            case "retried":
                self._say_once("the destination refuses a message: its key waits for the retry, the others go on")
            case "died":
                self._say_once("a message is refused for good: it is dead, set aside for people to see")
            case "leases taken" if self.happenings.killed_relay is not None:
                self._say_once(self._succession(player.name))
            case _:
                pass

    def _succession(self, name: str) -> str:
        if name == NEW_RELAY:
            return f"{name} gets its share of the slots"
        return f"{name} takes over the slots of {self.happenings.killed_relay}: its lease has run out"

    def _say_once(self, text: str) -> None:
        if text not in self._once:
            self._once.add(text)
            self._screen.say(text)
