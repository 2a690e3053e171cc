"""One destination's breaker: whose fault a failure is, and when to try again. Pure: time and chance come in."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from ..message import Message

STRIKES = 3
"""A message that was refused as "unavailable" this often, while others got through in between, is charged itself."""

FIRST_ALLOWANCE = 8
"""Messages in flight right after the breaker closes; doubles with as many successes."""

MOST_ASKED = 40
"""Times `cap`: the longest pause that a destination may ask for."""

MOST = 1_000
"""Messages of which each kind of note is kept, the latest."""

T = TypeVar("T")
State = Literal["closed", "tripped", "half-open"]


class Failure(NamedTuple):
    """A message failure that may turn out to be an outage: what to give back then."""

    message: Message
    attempts: int


@dataclass(slots=True)
class Suspicion:
    strikes: int
    successes: int


@dataclass(slots=True, kw_only=True)
class Breaker:
    """Closed: everything may go. Tripped: nothing goes until `until`. Half-open: one message goes, as a probe.

    Two mistakes are possible and both are closed. A poison message may look like an outage: it collects strikes when
    others succeed in between, and is then charged attempts like any bad message. An outage may look like bad messages:
    failures of `trip_after` different keys in a row, with no success between, trip the breaker and are given back.
    """

    initial: float
    cap: float
    trip_after: int
    state: State = "closed"
    until: float = 0.0
    trips: int = 0
    """In a row, without a success."""
    successes: int = 0
    shared_successes: int | None = None
    """What the database said when this breaker tripped; a change means that another relay got through."""
    error: str = ""
    misjudged: bool = False
    """Tripped by message failures: until a success, further message failures are the destination's too."""
    allowance: float = float("inf")
    suspects: dict[str, Suspicion] = field(default_factory=dict[str, Suspicion])
    streak: dict[str, tuple[Hashable, Failure]] = field(default_factory=dict[str, "tuple[Hashable, Failure]"])
    """Message failures with no success between, and the lane of each: the earliest of each message."""
    given_back: dict[str, Failure] = field(default_factory=dict[str, Failure])
    """That turned out to be the destination's, until the pump that has the slot takes them."""

    def succeeded(self, message: Message) -> bool:
        """Note a delivery; True if it closed the breaker."""
        self.successes += 1
        if self.suspects:
            self.suspects.pop(message.dedupe_id, None)
        if self.streak:
            self.streak.clear()
        if self.state == "closed":
            if self.allowance != float("inf"):
                self._widen()
            return False
        self._close()
        return True

    def succeed(self, count: int) -> bool:
        """Note so many deliveries, if nothing but their number matters: all is well, and nobody is suspected."""
        if self.suspects or self.streak or self.state != "closed" or self.allowance != float("inf"):
            return False
        self.successes += count
        return True

    def unavailable(
        self, message: Message, error: str, now: float, random: Callable[[], float], retry_after: float | None
    ) -> bool:
        """Note that the destination could not be reached with this message; True if the message itself is to blame."""
        if self._suspect(message):
            return True
        self._trip(error, now, random, retry_after)
        return False

    def refused(self, lane: Hashable, failure: Failure, error: str, now: float, random: Callable[[], float]) -> bool:
        """Note a message failure; True if it is the destination's after all (then `give_back`)."""
        if self.state == "half-open" and not self.misjudged:
            self._close()  # it refused this message, so it is there
        if self._is_convicted(failure.message):
            return False
        _remember(self.streak, failure.message.dedupe_id, (lane, failure))
        if self.misjudged or len({lane for lane, _ in self.streak.values()}) >= self.trip_after:
            self.misjudged = True
            self._trip(error, now, random, None)
            return True
        return False

    def answered(self) -> None:
        """It refused a message for good: whatever else is wrong, it is there."""
        if self.state == "half-open":
            self._close()

    def give_back(self) -> None:
        """All of the streak. Whoever is given back again and again, while others succeed in between, is suspected."""
        for id, (_, failure) in self.streak.items():
            self._suspect(failure.message)
            _remember(self.given_back, id, failure)
        self.streak.clear()

    def take_refunds(self, slots: Container[int]) -> list[Failure]:
        """What was given back in these slots, in order."""
        taken = [failure for failure in self.given_back.values() if failure.message.slot in slots]
        for failure in taken:
            del self.given_back[failure.message.dedupe_id]
        return sorted(taken, key=lambda failure: failure.message.position)

    def is_suspected(self, message: Message) -> bool:
        return bool(self.suspects) and message.dedupe_id in self.suspects

    def _suspect(self, message: Message) -> bool:
        """Note that a failure of it seemed to be the destination's; True if it is one strike too many."""
        suspicion = self.suspects.get(message.dedupe_id)
        if suspicion is None:
            _remember(self.suspects, message.dedupe_id, Suspicion(1, self.successes))
        elif self.successes > suspicion.successes:
            suspicion.strikes += 1
            suspicion.successes = self.successes
            return suspicion.strikes >= STRIKES
        return False

    def _is_convicted(self, message: Message) -> bool:
        """It had its strikes, and others succeeded since it failed."""
        suspicion = self.suspects.get(message.dedupe_id)
        if suspicion is None or suspicion.strikes < STRIKES or self.successes <= suspicion.successes:
            return False
        suspicion.successes = self.successes
        return True

    def probe_due(self, now: float) -> bool:
        return self.state == "tripped" and now >= self.until

    def half_open(self) -> None:
        if self.state == "tripped":
            self.state = "half-open"

    def probe_lost(self, now: float, pause: float) -> None:
        """Somebody else has the turn, or the probe came to nothing: look again after the pause. Unless another pump got
        through meanwhile."""
        if self.state != "closed":
            self.state, self.until = "tripped", now + pause

    def _trip(self, error: str, now: float, random: Callable[[], float], retry_after: float | None) -> None:
        if self.state == "tripped" and now < self.until:
            return  # the rest of the batch that tripped it
        self.trips += 1
        pause = min(self.cap, self.initial * 2.0 ** min(self.trips - 1, 30)) * (0.75 + random() / 2)
        self.state, self.error = "tripped", error
        self.until = now + max(pause, min(retry_after or 0.0, MOST_ASKED * self.cap))
        self.shared_successes = None

    def _close(self) -> None:
        self.state, self.trips, self.misjudged = "closed", 0, False
        self.allowance = FIRST_ALLOWANCE

    def _widen(self) -> None:
        self.allowance += 1
        if self.allowance > 4096:
            self.allowance = float("inf")


def _remember(notes: dict[str, T], id: str, note: T) -> None:
    """The earliest of each message: its attempts are what to go back to. Not more than so many."""
    notes.setdefault(id, note)
    if len(notes) > MOST:
        del notes[next(iter(notes))]


class Unbreakable(Breaker):
    """Of functions in this process: whatever goes wrong there is about the message at hand."""

    def unavailable(
        self, message: Message, error: str, now: float, random: Callable[[], float], retry_after: float | None
    ) -> bool:
        return True

    def refused(self, lane: Hashable, failure: Failure, error: str, now: float, random: Callable[[], float]) -> bool:
        return False
