"""The demo's processes, seen from their parent: started, heard, told, ended, killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import PostroomError

GRACE = 4.0
"""Seconds that a process has to end by itself."""
SHOWN_LINES = 12

Heard = Callable[["Player", dict[str, Any]], None]


class Mishap(PostroomError):
    """The demo itself went wrong, before it could show anything."""


class Player:
    """One process. It reports by JSON lines; closing its standard input asks it to end, as does our own death."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, hear: Heard) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._hear = hear
        self._signals: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._heard: dict[str, dict[str, Any]] = {}
        self._may_end = False
        self._listening = asyncio.create_task(self._listen())

    async def expect(self, event: str) -> dict[str, Any]:
        """Wait until it has reported this."""
        if not self._listening.done():
            await self._signals[event].wait()
        if event not in self._heard:
            raise Mishap(f"{self.name} ended before it was {event!r}. Its last words:\n{self._last_words()}")
        return self._heard[event]

    def tell(self, order: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(order.encode() + b"\n")

    def check(self) -> None:
        """Raise if it ended and nobody asked it to."""
        if self._listening.done() and not self._may_end:
            raise Mishap(f"{self.name} ended by itself. Its last words:\n{self._last_words()}")

    async def end(self) -> None:
        """Ask it to end; after a while, make it."""
        self._may_end = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
        await self._listening

    async def kill(self) -> None:
        """SIGKILL: it learns nothing of it."""
        self._may_end = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _listen(self) -> None:
        output = self._process.stdout
        while output is not None and (line := await output.readline()):
            report = json.loads(line)
            self._heard[report["event"]] = report
            self._may_end |= report["event"] == "done"
            self._hear(self, report)
            self._signals[report["event"]].set()
        for signal in self._signals.values():
            signal.set()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-SHOWN_LINES:]) or "(none)"


class Cast:
    """All processes of one demo; leaving the context ends them all, the one that was started first last."""

    def __init__(self, folder: Path, hear: Heard) -> None:
        self._folder = folder
        self._hear = hear
        self._players: list[Player] = []

    async def __aenter__(self) -> Cast:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.gather(*(player.end() for player in self._players[1:]), return_exceptions=True)
        await asyncio.gather(*(player.end() for player in self._players[:1]), return_exceptions=True)

    async def start(self, name: str, module: str, *arguments: object) -> Player:
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.{module}",
                *map(str, arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us; they end because we tell them
            )
        player = Player(name, process, log, self._hear)
        self._players.append(player)
        return player

    def check(self) -> None:
        for player in self._players:
            player.check()
