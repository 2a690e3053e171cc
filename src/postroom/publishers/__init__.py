"""Adapters to destinations, one file each; the relay finds them by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from ..errors import ConfigurationError
from ..redact import redact


def split(url: str, known: Collection[str] = ()) -> tuple[str, dict[str, str]]:
    """What follows the scheme of a publisher's URL, and its options; only `known` ones may be given, each once.

    >>> split("file:/tmp/out.jsonl?fsync=false", ["fsync"])
    ('/tmp/out.jsonl', {'fsync': 'false'})
    """
    place, _, query = url.partition(":")[2].partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    for name in options:
        if name not in known:
            hint = f"known: {', '.join(sorted(known))}" if known else "it knows none"
            raise ConfigurationError(f"{redact(url)!r} has an unknown option {name!r}; {hint}")
    if len(options) < len(pairs):
        raise ConfigurationError(f"{redact(url)!r} gives an option twice")
    return place, options
