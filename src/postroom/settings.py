"""Every setting with its default, and how what a user wrote becomes its value."""

# ruff: noqa: RUF009 - `setting` is `dataclasses.field`, and all defaults are immutable

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal, cast

from . import retry as retries
from .duration import seconds, spell
from .errors import ConfigurationError
from .retry import RetryPolicy, Steps
from .routing import PerTopic

Claim = Literal["slots", "leader", "rows"]
OnDead = Literal["block", "continue"]

LEASE_MARGIN = 0.1
"""The share of a lease's time that is not used: for clocks that run at different speeds, and for slow answers."""

RENEWAL_SLACK = 1 / 30
"""The share of a lease's time that by default is left for the renewal itself, so that publishing goes on during it."""

GRACE = 0.25
LONGEST_GRACE = 0.5

Reader = Callable[[str, object], Any]
"""Turns what a user wrote into a setting's value, or raises a `ConfigurationError` that begins with the given name."""

Given = dict[str, tuple[str, object]]
"""Setting → what an error calls it (with its source), and what was written."""


def _duration(at_least: float = 0.0, at_most: float | None = None) -> Reader:
    def read(name: str, value: object) -> float:
        length = seconds(value, name=name)
        if length < at_least or (at_most is not None and length > at_most):
            limit = f"from {spell(at_least)} to {spell(at_most)}" if at_most else f"at least {spell(at_least)}"
            raise ConfigurationError(f"{name}: {value!r} must be {limit}")
        return length

    return read


def _whole(at_least: int) -> Reader:
    def read(name: str, value: object) -> int:
        number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
        if isinstance(number, int) and not isinstance(number, bool) and number >= at_least:
            return number
        raise ConfigurationError(f"{name}: {value!r} must be a whole number, at least {at_least}")

    return read


def _rate(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if 0 < number < float("inf"):
        return number
    raise ConfigurationError(f"{name}: {value!r} must be a number of messages per second, such as 500")


def _flag(name: str, value: object) -> bool:
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    word = str(value).strip().lower()
    if isinstance(value, (bool, int, str)) and word in known:
        return known[word]
    raise ConfigurationError(f"{name}: {value!r} must be true or false")


def _one_of(*choices: str) -> Reader:
    def read(name: str, value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ConfigurationError(f"{name}: {value!r} must be {' or '.join(map(repr, choices))}")

    return read


def _optional(read: Reader) -> Reader:
    """Since None means unset, the text "none" is how a later source takes back what an earlier one set."""
    return lambda name, value: None if value == "none" else read(name, value)


def grace(timeout: float) -> float:
    """How much longer a call may take than one message: a publisher that keeps the time itself can still say which."""
    return min(timeout * GRACE, LONGEST_GRACE)


def _longest_publish(lease_ttl: float, slack: float = 0.0) -> float:
    """Just before a renewal a third of the lease is over; what starts then must still end, with its grace, before the
    margin."""
    room = lease_ttl * (2 / 3 - LEASE_MARGIN - slack)
    return max(room / (1 + GRACE), room - LONGEST_GRACE)


@contextmanager
def naming(name: str) -> Generator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _per_topic(read: Reader, default: object) -> Reader:
    def read_any(name: str, value: object) -> PerTopic[Any]:
        if not isinstance(value, Mapping):
            return PerTopic(read(name, value))
        entries = cast(Mapping[str, object], value).items()
        values = {glob: read(f"{name}[{glob!r}]", entry) for glob, entry in entries}
        with naming(name):
            return PerTopic(default, values)

    return read_any


def _latest_only(name: str, value: object) -> PerTopic[bool]:
    if isinstance(value, (list, tuple, set, frozenset)):
        value = {read_text(name, glob): True for glob in cast(Iterable[object], value)}
    return _per_topic(_flag, False)(name, value)


def read_text(name: str, value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ConfigurationError(f"{name}: a {type(value).__name__} is no text, or it is empty")


def setting(default: Any, read: Reader, about: str) -> Any:
    return field(default=default, metadata={"read": read, "about": about})


def readers_of(kind: type[Any]) -> dict[str, Reader]:
    return {item.name: item.metadata["read"] for item in fields(kind) if "read" in item.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a relay works. Make it with `Settings.of`, which takes values as users write them and checks them."""

    claim: Claim = setting(
        "slots", _one_of("slots", "leader", "rows"), "How relays share the work; the same for all relays of an outbox."
    )
    batch_size: int = setting(
        500, _whole(1), "Messages published at a time. Of a backlog, twice as many are read at a time."
    )
    workers: int | None = setting(None, _optional(_whole(1)), "Pumps per relay; None = as many as suit the store.")
    concurrency: int = setting(32, _whole(1), "Tasks, and calls of a Python function, that run at the same time.")
    poll_interval: float = setting(
        0.1, _duration(0.01, 600), "Longest pause between looks at the outbox, without a doorbell."
    )
    idle_interval: float = setting(1.0, _duration(0.01, 3600), "The same when a doorbell works.")
    lease_ttl: float = setting(15.0, _duration(0.1, 3600), "How long the slots of a crashed relay wait for another.")
    publish_timeout: float = setting(
        7.5, _duration(0.01), "Longest wait for a broker's answer; about half of lease_ttl."
    )
    stop_timeout: float = setting(10.0, _duration(), "How long stopping waits for what is in flight.")
    retry: RetryPolicy = setting(
        Steps(), lambda name, value: retries.parse(value, name=name), "When a refused message is tried again."
    )
    on_dead: PerTopic[OnDead] = setting(
        PerTopic("block"),
        _per_topic(_one_of("block", "continue"), "block"),
        "What a dead message does to later ones of its key; by type or topic. Without a key it never blocks.",
    )
    revive_after: PerTopic[float | None] = setting(
        PerTopic(None),
        _per_topic(_optional(_duration()), None),
        "Dead messages try again by themselves after this time; by type or topic. None = never.",
    )
    latest_only: PerTopic[bool] = setting(
        PerTopic(False), _latest_only, "Of a key's undelivered messages only the newest is sent; by type or topic."
    )
    retention: float | None = setting(
        None, _optional(_duration()), "How long delivered messages are archived; None = deleted on delivery."
    )
    dedupe_window: float = setting(604_800.0, _duration(), "How long an idempotency key is remembered.")
    clean_interval: float = setting(3_600.0, _duration(0.01), "Time between two rounds of cleaning.")
    clean_batch: int = setting(10_000, _whole(1), "Rows that cleaning deletes at a time.")
    create_tables: bool = setting(True, _flag, "Create missing tables on first use.")
    max_rate: float | None = setting(None, _optional(_rate), "Messages per second to a destination; None = no limit.")
    enabled: bool = setting(True, _flag, "Off = a relay that starts and delivers nothing.")
    breaker_initial: float = setting(0.5, _duration(0.001), "First pause before an unavailable destination is probed.")
    breaker_cap: float = setting(15.0, _duration(0.001), "Longest such pause.")
    trip_after: int = setting(5, _whole(1), "Failures in a row, over different keys, that mean an outage after all.")

    @classmethod
    def of(cls, **overrides: object) -> Settings:
        """Settings from values as users write them: durations in any form, None = unset. Errors name the setting."""
        return compose_settings({name: (name, value) for name, value in overrides.items()})

    @property
    def renew_interval(self) -> float:
        """Leases are renewed this often, so that two renewals in a row may fail before one is lost."""
        return self.lease_ttl / 3

    @property
    def patience(self) -> float:
        """Seconds for the answer to a small question: a renewal without one can be sent again before the lease ends."""
        return max(1.0, self.renew_interval)

    @property
    def lease_margin(self) -> float:
        """This long before a lease ends, nothing is published under it any more."""
        return self.lease_ttl * LEASE_MARGIN

    def blocks(self, topic: str, type: str | None, key: str | None) -> bool:
        """Whether a message of this kind, once dead, holds up those behind it."""
        return key is not None and self.on_dead.value_for(topic, type) == "block"

    def cautions(self) -> list[str]:
        """What works, but hardly as meant; for logs and for `doctor`."""
        return [caution for caution, applies in _cautions(self) if applies]


SETTINGS = readers_of(Settings)


def compose_settings(given: Given) -> Settings:
    refuse_unknown(given, SETTINGS)
    values = {name: SETTINGS[name](label, value) for name, (label, value) in given.items() if value is not None}
    lease_ttl = values.get("lease_ttl", Settings().lease_ttl)
    values.setdefault("publish_timeout", min(lease_ttl / 2, _longest_publish(lease_ttl, RENEWAL_SLACK)))
    values.setdefault("idle_interval", max(Settings().idle_interval, values.get("poll_interval", 0)))
    values.setdefault("breaker_cap", max(Settings().breaker_cap, values.get("breaker_initial", 0)))
    settings = Settings(**values)
    _refuse_contradictions(settings)
    return settings


def refuse_unknown(given: Given, known: Iterable[str]) -> None:
    for name, (label, _) in given.items():
        if name not in known:
            raise ConfigurationError(f"{label}: there is no such setting{_suggestion(name, known)}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower().replace("-", "_"), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(sorted(known))}"


def _refuse_contradictions(settings: Settings) -> None:
    longest = round(_longest_publish(settings.lease_ttl), 3)  # as it is spelt
    if settings.publish_timeout > longest:
        raise ConfigurationError(
            f"publish_timeout ({spell(settings.publish_timeout)}) must be at most {spell(longest)} with a lease_ttl of "
            f"{spell(settings.lease_ttl)}: a publish may not outlive its lease. Lower it, or raise lease_ttl"
        )
    if settings.claim == "rows" and any(settings.latest_only.possible()):
        raise ConfigurationError(
            "latest_only needs to know what is newer in a key, and with claim='rows' a key has no order: "
            "use claim='slots'"
        )
    if settings.breaker_initial > settings.breaker_cap:
        raise ConfigurationError(
            f"breaker_initial ({spell(settings.breaker_initial)}) must be at most breaker_cap "
            f"({spell(settings.breaker_cap)})"
        )


def _cautions(settings: Settings) -> Iterable[tuple[str, bool]]:
    horizon = retries.horizon(settings.retry) or 0.0
    yield (
        f"dedupe_window ({spell(settings.dedupe_window)}) is shorter than the retries may take ({spell(horizon)}): "
        "a key may be forgotten while its message is still being tried",
        settings.dedupe_window < horizon,
    )
    yield (
        f"retention ({spell(settings.retention or 0)}) is shorter than clean_interval "
        f"({spell(settings.clean_interval)}): delivered messages stay until the next cleaning",
        settings.retention is not None and settings.retention < settings.clean_interval,
    )
