"""One destination's breaker: whose fault a failure is, and when to try again. Pure: time and chance come in."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from ..message import Message

STRIKES = 3
"""A message that was refused as "unavailable" this often, while others of its topic got through in between, is charged
itself."""

TRIALS = 3
"""How often it must fail as the very first after a pause that the destination asked for, before it is charged. Of any
later one nobody knows: those before it may have used up what there was."""

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
    topic: str
    strikes: int
    successes: int
    of_topic: int
    """Those of its own topic."""
    asked: bool = False
    """The last failure said when to come again."""
    missed: bool = False
    """A probe went out without it: it is not at hand."""

    @property
    def awaits_trial(self) -> bool:
        """Nothing but trials can give it further strikes."""
        return self.asked and self.strikes >= STRIKES - 1

    @property
    def is_proved(self) -> bool:
        return self.strikes >= STRIKES - 1 + (TRIALS if self.asked else 1)


@dataclass(slots=True)
class Failing:
    """A topic of which nothing got through since it failed. If others do, it is what the destination lacks."""

    successes: int
    pauses: int = 0
    """In a row, for which it alone was held back."""
    until: float = float("-inf")
    tried: bool = False
    """One of it went, and it is not known yet what became of it."""
    asked: bool = False
    """The destination said itself how long to wait."""
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Breaker:
    """Closed: everything may go. Tripped: nothing goes until `until`. Half-open: one message goes, as a probe.

    Two mistakes are possible and both are closed. A poison message may look like an outage: it collects strikes when
    others of its topic succeed in between, and is then charged attempts like any bad message. An outage may look like
    bad messages: failures of `trip_after` different keys in a row, with no success between, trip the breaker and are
    given back.

    A topic of which nothing gets through while others do is missing, or closed to us: it is held back alone.
    """

    initial: float
    cap: float
    trip_after: int
    state: State = "closed"
    until: float = 0.0
    trips: int = 0
    """In a row, without a success."""
    asked: float | None = None
    """Until when it said itself that it wants nothing; a success of what was sent before changes nothing of that."""
    successes: int = 0
    shared_successes: int | None = None
    """What the database said when this breaker tripped; a change means that another relay got through."""
    error: str = ""
    is_on_record: bool = False
    """The database may still show an outage that an earlier relay met: the first success ends it."""
    misjudged: bool = False
    """Tripped by message failures: until a success, further message failures are the destination's too."""
    allowance: float = float("inf")
    prober: object = None
    """Whose probe is out, of all who share this breaker."""
    probe: str | None = None
    """Which message it is."""
    successes_at_trial: int = -1
    """When one failed last."""
    suspects: dict[str, Suspicion] = field(default_factory=dict[str, Suspicion])
    of_topic: dict[str, int] = field(default_factory=dict[str, int])
    """Successes of each topic that has a suspect."""
    failing: dict[str, Failing] = field(default_factory=dict[str, Failing])
    streak: dict[str, tuple[Hashable, Failure]] = field(default_factory=dict[str, "tuple[Hashable, Failure]"])
    """Message failures with no success between, and the lane of each: the earliest of each message."""
    given_back: dict[str, Failure] = field(default_factory=dict[str, Failure])
    """That turned out to be the destination's, until the pump that has the slot takes them."""

    def succeeded(self, message: Message) -> bool:
        """Note a delivery; True if it closed the breaker."""
        self.successes += 1
        if self.failing:
            self._topic_succeeded(message.topic)
        if self.suspects:
            self._clear(message)
        if self.streak:
            self.streak.clear()
        if self.state == "closed":
            if self.allowance != float("inf"):
                self._widen()
            return False
        if self.state == "tripped" and self.asked is not None:
            return False
        self._close()
        return True

    def succeeded_elsewhere(self, count: int, now: float) -> None:
        """Of all relays together there are so many by now: if more than before, there is no need to wait."""
        if self.state == "tripped":
            if self.shared_successes is not None and count != self.shared_successes:
                self.until = min(self.until, max(now, self.asked or now))
            self.shared_successes = count

    def succeed(self, count: int) -> bool:
        """Note so many deliveries, if nothing but their number matters: all is well, and nobody is suspected."""
        is_at_peace = self.state == "closed" and self.allowance == float("inf") and not self.is_on_record
        if not is_at_peace or self.suspects or self.streak or self.failing:
            return False
        self.successes += count
        return True

    def unavailable(
        self, message: Message, error: str, now: float, random: Callable[[], float], retry_after: float | None
    ) -> bool:
        """Note that the destination could not be reached with this message; True if the message itself is to blame."""
        seen = self._seen(message)
        others_succeeded = self.of_topic.get(message.topic, 0) > seen.of_topic
        seen.asked, seen.missed = retry_after is not None, False
        is_probe = self.state == "half-open" and self.probe == message.dedupe_id
        if is_probe and seen.awaits_trial:
            self.successes_at_trial = self.successes
        if self._suspect(message, seen, others_succeeded and (is_probe or not seen.awaits_trial)):
            if retry_after is not None:
                seen.strikes = STRIKES  # somebody else may have used up what there was, each time: not so soon again
                self._trip(error, now, random, retry_after)
            return True
        if not self._hold_back(message.topic, error, now, random, retry_after) or self.state == "half-open":
            self._trip(error, now, random, retry_after)
        return False

    def refused(self, lane: Hashable, failure: Failure, error: str, now: float, random: Callable[[], float]) -> bool:
        """Note a message failure; True if it is the destination's after all (then `give_back`)."""
        if self.state == "half-open" and not self.misjudged:
            self._close()  # it refused this message, so it is there
        self.failing.pop(failure.message.topic, None)
        if self._is_convicted(failure.message):
            return False
        _remember(self.streak, failure.message.dedupe_id, (lane, failure))
        if self.misjudged or len({lane for lane, _ in self.streak.values()}) >= self.trip_after:
            self.misjudged = True
            self._trip(error, now, random, None)
            return True
        return False

    def answered(self, topic: str) -> None:
        """It refused a message for good: whatever else is wrong, it is there."""
        self.failing.pop(topic, None)
        if self.state == "half-open":
            self._close()

    def give_back(self) -> None:
        """All of the streak. Whoever is given back again and again, while others succeed in between, is suspected."""
        for id, (_, failure) in self.streak.items():
            seen = self._seen(failure.message)
            self._suspect(failure.message, seen, self.successes > seen.successes)
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

    def is_doubtful(self, message: Message) -> bool:
        """Whether others succeeded since it failed, so that it says little of the destination."""
        suspicion = self.suspects.get(message.dedupe_id)
        return suspicion is not None and suspicion.strikes > 1

    def probes_with(self, message: Message, prober: object) -> None:
        """The one message that goes while this is half-open. If others were looked for, they are not at hand."""
        self.prober, self.probe = prober, message.dedupe_id
        if not self.needs_trial(message):
            for suspicion in filter(self._is_triable, self.suspects.values()):
                suspicion.missed = True

    def needs_trial(self, message: Message) -> bool:
        """Whether it should be the next probe, to find out if it is to blame: others got through since it failed, and
        since any other failed a trial."""
        suspicion = self.suspects.get(message.dedupe_id)
        return suspicion is not None and self._is_triable(suspicion)

    def has_trials(self) -> bool:
        """Whether there is any such message; its pump goes first."""
        return any(map(self._is_triable, self.suspects.values()))

    def _is_triable(self, suspicion: Suspicion) -> bool:
        return (
            suspicion.awaits_trial
            and not suspicion.missed
            and self.successes > self.successes_at_trial
            and self.of_topic.get(suspicion.topic, 0) > suspicion.of_topic
        )

    def _seen(self, message: Message) -> Suspicion:
        """What there was when it failed the last time; if it never did, what there is."""
        known = self.suspects.get(message.dedupe_id)
        return known or Suspicion(message.topic, 1, self.successes, self.of_topic.setdefault(message.topic, 0))

    def _suspect(self, message: Message, suspicion: Suspicion, others_succeeded: bool) -> bool:
        """Note that a failure of it seemed to be the destination's; True if it is one strike too many."""
        _remember(self.suspects, message.dedupe_id, suspicion)
        if not others_succeeded:
            return False
        suspicion.strikes += 1
        suspicion.successes, suspicion.of_topic = self.successes, self.of_topic.get(message.topic, 0)
        return suspicion.is_proved

    def _clear(self, message: Message) -> None:
        self.suspects.pop(message.dedupe_id, None)
        if not self.suspects:
            self.of_topic.clear()
        elif message.topic in self.of_topic:
            self.of_topic[message.topic] += 1

    def _is_convicted(self, message: Message) -> bool:
        """It had its strikes, and others succeeded since it failed."""
        suspicion = self.suspects.get(message.dedupe_id)
        if suspicion is None or not suspicion.is_proved or self.successes <= suspicion.successes:
            return False
        suspicion.successes = self.successes
        return True

    def probe_due(self, now: float) -> bool:
        return self.state == "tripped" and now >= self.until

    def half_open(self) -> None:
        if self.state == "tripped":
            self.state, self.probe = "half-open", None

    def probe_lost(self, now: float, pause: float) -> None:
        """Somebody else has the turn, or the probe came to nothing: look again after the pause, or when it was going to
        be. Unless another pump got through meanwhile."""
        if self.state != "closed":
            self.state, self.until = "tripped", max(self.until, now + pause)

    def probe_ended(self, prober: object, now: float) -> None:
        """A probe that came to nothing must not leave the breaker half-open for ever."""
        if self.prober is not prober:
            return
        self.prober = None
        if self.state == "half-open":
            self.probe_lost(now, self.initial)

    def is_held_back(self, topic: str) -> bool:
        return topic in self.failing and self.failing[topic].pauses > 0

    def held_back(self, now: float) -> set[str]:
        """Topics of which nothing may go now."""
        return {topic for topic, failing in self.failing.items() if now < failing.until}

    def take_turn(self, message: Message, now: float) -> bool:
        """Whether it may go, as far as its topic is concerned: of one that is held back, one message in each pause.
        Those that have not failed yet go first, in whatever pump: a bad one must not keep its topic held back."""
        failing = self.failing.get(message.topic)
        if failing is None or not failing.pauses:
            return True
        if now < failing.until + (self.initial if self.is_suspected(message) else 0.0):
            return False
        failing.tried, failing.until = True, now + self._longest(failing.pauses)
        return True

    def turns(self) -> list[float]:
        """When the next of a topic that is held back may go: at the second time, one that failed before."""
        return [time for failing in self.failing.values() for time in (failing.until, failing.until + self.initial)]

    def _hold_back(
        self, topic: str, error: str, now: float, random: Callable[[], float], retry_after: float | None
    ) -> bool:
        """Whether it fails alone: others got through since it failed first, and none of it did."""
        failing = self.failing.get(topic)
        if failing is None:
            _remember(self.failing, topic, Failing(self.successes))
            return False
        if self.successes == failing.successes:
            return False
        if failing.tried or now >= failing.until:  # else it is the rest of a batch
            failing.tried, failing.pauses, failing.error = False, failing.pauses + 1, error
            failing.until, failing.asked = now + self._pause(failing.pauses, random), False
        if retry_after is not None:
            failing.until, failing.asked = max(failing.until, now + self._allowed(retry_after)), True
        return True

    def _topic_succeeded(self, topic: str) -> None:
        """What was sent before it asked to be left alone says nothing."""
        failing = self.failing.get(topic)
        if failing is not None and (failing.tried or not failing.asked):
            del self.failing[topic]

    def _trip(self, error: str, now: float, random: Callable[[], float], retry_after: float | None) -> None:
        if self.state != "tripped" or now >= self.until:  # else it is the rest of the batch that tripped it
            self.trips += 1
            self.state, self.error = "tripped", error
            self.until = now + self._pause(self.trips, random)
            self.shared_successes = None
        if retry_after is not None:
            self.asked = max(self.asked or now, now + self._allowed(retry_after))
            self.until = max(self.until, self.asked)

    def _allowed(self, retry_after: float) -> float:
        return min(retry_after, MOST_ASKED * self.cap)

    def _longest(self, number: int) -> float:
        """A quarter more than meant, but never more than the cap."""
        return min(self.cap, 1.25 * self.initial * 2.0 ** min(number - 1, 30))

    def _pause(self, number: int, random: Callable[[], float]) -> float:
        """Relays do not all come back at once, at the cap neither."""
        return self._longest(number) * (0.6 + 0.4 * random())

    def _close(self) -> None:
        self.state, self.trips, self.misjudged, self.asked = "closed", 0, False, None
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
