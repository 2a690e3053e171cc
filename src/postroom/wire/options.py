"""The options of a publisher's URL: taken out, checked and turned into values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

from ..duration import seconds
from ..errors import ConfigurationError
from ..redact import redact

Read = Callable[[str], Any]
_BROKEN_LOGIN = re.compile(r"//[^:@/?#]*:.*[/?#].*@", re.DOTALL)
"""What looks like a password with a character that ends the place of a URL."""
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def unusable(url: str, why: str, shown: str | None = None) -> ConfigurationError:
    """Where its password may have been taken for something else, what was made of the URL is not repeated."""
    if _BROKEN_LOGIN.search(url):
        why = "cannot be read: in a user and in a password, @ : / ? # % must be written as %40 %3A %2F %3F %23 %25"
    return ConfigurationError(f"{shown or redact(url)!r} {why}")


def split(url: str, known: Collection[str] = ()) -> tuple[str, dict[str, str]]:
    """What follows the scheme of a publisher's URL, and its options; only `known` ones may be given, each once.

    >>> split("file:/tmp/out.jsonl?fsync=false", ["fsync"])
    ('/tmp/out.jsonl', {'fsync': 'false'})
    """
    place, _, query = url.partition(":")[2].partition("?")
    return place, _parse(url, query, known)


def take(
    url: str, ours: Mapping[str, Read], theirs: Collection[str] = (), *, mark: str = "?"
) -> tuple[str, dict[str, Any]]:
    """The URL without our options, and those, read. `theirs` stay in it; any other is an error.

    >>> take("redis://localhost/0?maxlen=1000&db=1", {"maxlen": whole}, ["db"])
    ('redis://localhost/0?db=1', {'maxlen': 1000})
    """
    place, _, query = url.partition(mark)
    options = _parse(url, query, {*ours, *theirs})
    rest = {name: value for name, value in options.items() if name not in ours}
    taken = {name: _read(url, name, value, ours[name]) for name, value in options.items() if name in ours}
    return f"{place}{mark}{urlencode(rest, quote_via=quote)}" if rest else place, taken


def _parse(url: str, query: str, known: Collection[str]) -> dict[str, str]:
    pairs = options_in(query)
    options = dict(pairs)
    for name in options:
        if name not in known:
            hint = f"known: {', '.join(sorted(known))}" if known else "it knows none"
            raise unusable(url, f"has an unknown option {name!r}; {hint}")
    if len(options) < len(pairs):
        raise unusable(url, "gives an option twice")
    return options


def options_in(query: str) -> list[tuple[str, str]]:
    """A plus sign is one: passwords and keys have them, and nobody writes blanks in options."""
    pairs = (each.partition("=") for each in query.split("&") if each)
    return [(unquote(name), unquote(value)) for name, _, value in pairs]


def _read(url: str, name: str, value: str, read: Read) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ConfigurationError(f"{redact(url)!r}: {name} {error}") from None


# --- how values are read; ValueError says what one must be


def truth(value: str) -> bool:
    if value.lower() not in _TRUTHS:
        raise ValueError(f"must be 'true' or 'false', not {value!r}")
    return _TRUTHS[value.lower()]


def whole(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(value)


def positive(value: str) -> int:
    number = whole(value)
    if number == 0:
        raise ValueError("must be at least 1")
    return number


def duration(value: str) -> float:
    try:
        return seconds(value, name="it")
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
