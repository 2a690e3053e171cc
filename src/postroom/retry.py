"""Retry policies: when a message that was refused is tried again, and when it gives up.

Only a refusal of the message itself is counted here; an unavailable destination uses no attempts.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, cast

from .duration import Duration, seconds
from .errors import ConfigurationError

DEFAULT_STEPS = (0.0, 1.0, 5.0, 30.0, 120.0)
Random = Callable[[], float]
COUNTED_ATTEMPTS = 10_000
"""A policy that tries more often than this is taken to try for ever, when its horizon is asked for."""


class RetryPolicy(Protocol):
    """Decides when a message is tried again. Pure: randomness comes in by argument."""

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        """Seconds until the next try; None = give up, the message is dead.

        `attempt` is the number of failed attempts so far: 1 when the first one has just failed. `error` and `type` are
        the failure and the message's type, where known. `random` returns numbers from 0 to below 1.
        """
        ...


@dataclass(frozen=True, slots=True, init=False)
class Immediate:
    """Try again at once, `max_attempts` tries in all (None = for ever)."""

    max_attempts: int | None

    def __init__(self, *, max_attempts: int | None = 5) -> None:
        object.__setattr__(self, "max_attempts", _attempts(max_attempts))

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        return None if _exhausted(attempt, self.max_attempts) else 0.0


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """Wait the same time before every try, `max_attempts` tries in all (None = for ever)."""

    wait: float
    max_attempts: int | None

    def __init__(self, wait: Duration = "10s", *, max_attempts: int | None = 5) -> None:
        object.__setattr__(self, "wait", seconds(wait, name="wait"))
        object.__setattr__(self, "max_attempts", _attempts(max_attempts))

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        return None if _exhausted(attempt, self.max_attempts) else self.wait


@dataclass(frozen=True, slots=True, init=False)
class Steps:
    """Wait the given times one after the other, then give up: n steps are n + 1 tries.

    Without arguments: at once, 1 s, 5 s, 30 s, 2 min.
    """

    waits: tuple[float, ...]

    def __init__(self, *waits: Duration) -> None:
        object.__setattr__(self, "waits", tuple(seconds(wait, name="steps") for wait in waits) or DEFAULT_STEPS)

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        return None if attempt > len(self.waits) else self.waits[attempt - 1]


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Wait `initial`, then `factor` times as long each time, never longer than `cap`.

    `jitter` takes a random part off each wait, at most that share of it: 0.2 means 80 to 100 % of the wait. It only
    shortens, so that `cap` holds and messages that failed together are still spread when they have reached it.
    """

    initial: float
    cap: float
    factor: float
    jitter: float
    max_attempts: int | None

    def __init__(
        self,
        initial: Duration = "1s",
        cap: Duration = "10m",
        *,
        factor: float = 2,
        jitter: float = 0.2,
        max_attempts: int | None = 8,
    ) -> None:
        object.__setattr__(self, "initial", seconds(initial, name="initial"))
        object.__setattr__(self, "cap", seconds(cap, name="cap"))
        object.__setattr__(self, "factor", _between("factor", factor, 1, 1000))
        object.__setattr__(self, "jitter", _between("jitter", jitter, 0, 1))
        object.__setattr__(self, "max_attempts", _attempts(max_attempts))
        if not 0 < self.initial <= self.cap:
            raise ConfigurationError(
                f"exponential: initial ({initial!r}) must be more than 0 and at most cap ({cap!r}); "
                "for no wait at all use 'immediate'"
            )

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        if _exhausted(attempt, self.max_attempts):
            return None
        return self._longest(attempt) * (1 - self.jitter * random())

    def _longest(self, attempt: int) -> float:
        try:
            return min(self.cap, self.initial * self.factor ** (attempt - 1))
        except OverflowError:
            return self.cap


@dataclass(frozen=True, slots=True)
class Never:
    """Give up at the first failure."""

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        return None


@dataclass(frozen=True, slots=True, init=False)
class ByType:
    """A policy per message type: globs, the first match wins; `default` for the rest, and where there is no type."""

    policies: tuple[tuple[str, RetryPolicy], ...]
    default: RetryPolicy

    def __init__(self, policies: Mapping[str, object], default: object = None) -> None:
        object.__setattr__(self, "policies", tuple(_by_glob(policies)))
        object.__setattr__(self, "default", _default(default))

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        return self._choose(type).delay(attempt, error, type, random)

    def _choose(self, type: str | None) -> RetryPolicy:
        if type is None:
            return self.default
        return next((policy for glob, policy in self.policies if fnmatchcase(type, glob)), self.default)


@dataclass(frozen=True, slots=True, init=False)
class ByError:
    """A policy per class of error: the most specific class wins; `default` for the rest.

    The error itself is looked at first, then what caused it (`raise … from cause`). A class may be given by its dotted
    name, "httpx.ReadTimeout", which imports nothing: whoever raised the error has imported it.
    """

    policies: tuple[tuple[type[BaseException] | str, RetryPolicy], ...]
    default: RetryPolicy

    def __init__(self, policies: Mapping[type[BaseException] | str, object], default: object = None) -> None:
        object.__setattr__(self, "policies", tuple(_by_class(policies)))
        object.__setattr__(self, "default", _default(default))

    def delay(self, attempt: int, error: BaseException | None, type: str | None, random: Random) -> float | None:
        return self._choose(error).delay(attempt, error, type, random)

    def _choose(self, error: BaseException | None) -> RetryPolicy:
        for link in _causes(error):
            for ancestor in link.__class__.__mro__:
                for wanted, policy in self.policies:
                    if ancestor is (_loaded(wanted) if isinstance(wanted, str) else wanted):
                        return policy
        return self.default


def horizon(policy: RetryPolicy) -> float | None:
    """Seconds from the first failure to the last try, at worst; None = it never ends."""
    if isinstance(policy, (ByType, ByError)):
        horizons = [horizon(member) for member in (policy.default, *(member for _, member in policy.policies))]
        return None if None in horizons else max(length for length in horizons if length is not None)
    total = 0.0
    for attempt in range(1, COUNTED_ATTEMPTS + 1):
        wait = policy.delay(attempt, None, None, lambda: 0.0)
        if wait is None:
            return total
        total += wait
    return None


def parse(value: object, *, name: str = "retry") -> RetryPolicy:
    """A policy from configuration; a policy passes through.

    Text: "never", "immediate max=3", "fixed 10s", "steps 0s 1s 5s", "exponential 1s 10m max=8 factor=3 jitter=0.1".
    A list of durations is steps. A table with `policy` names the policy and its options, as in
    `{policy = "fixed", wait = "10s", max = 3}`; one without it maps globs on message types to policies, or classes of
    errors to policies. "max=forever" never gives up.
    """
    try:
        return _parse(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error


_KINDS: Mapping[str, Callable[..., RetryPolicy]] = {
    "never": Never,
    "immediate": Immediate,
    "fixed": Fixed,
    "steps": Steps,
    "exponential": Exponential,
    "by_type": ByType,
    "by_error": ByError,
}


def _parse(value: object) -> RetryPolicy:
    if callable(getattr(value, "delay", None)) and not isinstance(value, type):
        return cast(RetryPolicy, value)
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, Mapping):
        return _from_table(cast(Mapping[Any, object], value))
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)) and value:
        return Steps(*cast(Sequence[Duration], value))
    raise ConfigurationError(f"{value!r} is no retry policy; {_REMEDY}")


def _from_text(text: str) -> RetryPolicy:
    words = text.split()
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    return _build(words[0] if words else "", [word for word in words[1:] if "=" not in word], options)


def _from_table(table: Mapping[Any, object]) -> RetryPolicy:
    if "policy" in table:
        options = {key: value for key, value in table.items() if key != "policy"}
        waits = options.pop("waits", ())
        if isinstance(waits, str) or not isinstance(waits, Sequence):
            raise ConfigurationError(f"waits: {waits!r} is no list of durations such as ['1s', '5s']")
        return _build(table["policy"], cast(Sequence[object], waits), options)
    if any(isinstance(key, type) for key in table):
        return ByError(table)
    return ByType(table)


def _build(kind: object, positional: Sequence[object], options: Mapping[str, object]) -> RetryPolicy:
    make = _KINDS.get(str(kind).replace("-", "_").lower())
    if make is None:
        raise ConfigurationError(f"there is no retry policy {kind!r}; {_REMEDY}")
    named = {_LONG_NAMES.get(key, key): _literal(value) for key, value in options.items()}
    try:
        inspect.signature(make).bind(*positional, **named)
    except TypeError as error:
        known = ", ".join(inspect.signature(make).parameters) or "none"
        raise ConfigurationError(f"{kind}: {error}; its options: {known}") from error
    return make(*positional, **named)


_REMEDY = "write 'never', 'immediate', 'fixed 10s', 'steps 0s 1s 5s' or 'exponential 1s 10m max=8'"
_LONG_NAMES = {"max": "max_attempts"}


def _literal(value: object) -> object:
    """Options in text and environment variables arrive as strings."""
    if value in ("forever", "none"):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
        return float(value) if "." in value else int(value)
    return value


def _by_glob(policies: object) -> Iterator[tuple[str, RetryPolicy]]:
    for glob, policy in _entries(policies, "globs on message types"):
        if not isinstance(glob, str) or not glob:
            raise ConfigurationError(f"{glob!r} is no glob on message types, such as 'OrderPlaced' or 'mail.*'")
        yield glob, parse(policy, name=glob)


def _by_class(policies: object) -> Iterator[tuple[type[BaseException] | str, RetryPolicy]]:
    for wanted, policy in _entries(policies, "classes of errors"):
        yield _error_class(wanted), parse(policy, name=str(wanted))


def _entries(policies: object, what: str) -> Iterator[tuple[object, object]]:
    if not isinstance(policies, Mapping):
        raise ConfigurationError(f"{policies!r} is no mapping of {what} to retry policies")
    return iter(cast(Mapping[object, object], policies).items())


def _error_class(wanted: object) -> type[BaseException] | str:
    if isinstance(wanted, type) and issubclass(wanted, BaseException):
        return wanted
    if isinstance(wanted, str) and "." in wanted.strip("."):
        return wanted
    built_in = _loaded(f"builtins.{wanted}")
    if built_in is None:
        raise ConfigurationError(f"{wanted!r} is no class of errors; give the class or a name such as 'ssl.SSLError'")
    return built_in


def _loaded(name: str) -> type[BaseException] | None:
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _default(policy: object) -> RetryPolicy:
    return Steps() if policy is None else parse(policy, name="default")


def _exhausted(attempt: int, max_attempts: int | None) -> bool:
    return max_attempts is not None and attempt >= max_attempts


def _attempts(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ConfigurationError(f"max_attempts: {value!r} is not a number of tries; write 1 or more, or None for ever")


def _between(name: str, value: object, lowest: float, highest: float) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and lowest <= value <= highest:
        return float(value)
    raise ConfigurationError(f"{name}: {value!r} must be a number from {lowest} to {highest}")
