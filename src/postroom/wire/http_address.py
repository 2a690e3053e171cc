"""Where a web hook is, and what of that may be told."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import httpx

from ..errors import ConfigurationError, MessageRejected
from ..message import Message
from ..redact import HIDDEN, redact
from . import tls
from .options import options_in, unusable
from .template import FIELDS, template

SHORTEST_SECRET = 8


class Address:
    """The URL of a hook. The host is fixed: it has one breaker and one limit. If it has a name, no more is told."""

    def __init__(self, url: str, name: str | None = None) -> None:
        shown = name or redact(url)
        parts, origin = _split(url, shown)
        self._name = name
        self._origin = str(origin).removesuffix("/")
        self._path, self._needed = _path(parts.path or "/", shown)
        self._query = f"?{parts.query}" if parts.query else ""
        self._shown_query = redact(self._query)
        self.hidden = [] if name is None else words(re.split("[/?&=]", f"{parts.path}{self._query}"))
        self._is_secure = parts.scheme == "https"
        self.host = origin.raw_host.decode()
        self.port = origin.port or (443 if self._is_secure else 80)
        self.authorization = _basic(parts.username, parts.password)

    def of(self, message: Message) -> tuple[str, Mapping[str, Any]]:
        """The URL, and if it holds a secret, what to ask for beside it: the client logs every URL it sees."""
        path = self._filled(message)
        shown = f"{path}{self._shown_query}" if self._name is None else f"/{HIDDEN}"
        url = f"{self._origin}{path}{self._query}"
        if shown == f"{path}{self._query}":
            return url, {}
        return f"{self._origin}{shown}", {"target": httpx.URL(url).raw_path}

    def tls(self, given: Mapping[str, Any]) -> ssl.SSLContext | None:
        if self._is_secure:
            return tls.context(given)
        if options := sorted(tls.OPTIONS.keys() & given):
            raise ConfigurationError(f"{options[0]} needs https:, not http:")
        return None

    def _filled(self, message: Message) -> str:
        values = {field: _segment(getattr(message, field)) for field in FIELDS}
        if lacking := [field for field in self._needed if values[field] is None]:
            raise MessageRejected(f"it has no {lacking[0]}, and the path of the hook needs one", permanent=True)
        path = self._path(Message(**values, id=message.id))
        if _leads_elsewhere(path):
            raise MessageRejected("its path would have . or .. in it, which leads elsewhere", permanent=True)
        return path


def name_in(options: str, name: str | None) -> str | None:
    """The name that the options give, or else this one."""
    name = dict(options_in(options)).get("name", name)
    if name is not None and (not name.strip() or "#" in name):
        raise ConfigurationError(f"the name of a hook must not be empty, nor have # in it: {name!r}")
    return name


def _path(text: str, shown: str) -> tuple[Callable[[Message], str], list[str]]:
    """The template, and which fields it needs."""
    try:
        made = template("path", text)
    except ConfigurationError:
        allowed = "{topic}, {key} and {type}, and nothing else in braces"
        raise ConfigurationError(f"the path of {shown!r} may name {allowed}") from None
    return made, [field for _, field, _, _ in Formatter().parse(text) if field]


def words(texts: Iterable[str]) -> list[str]:
    """What to hide of them: each, and the last word of each, unless it is too short for a secret."""
    return [word for text in texts for word in (text, text.rpartition(" ")[2]) if len(word) >= SHORTEST_SECRET]


def _split(url: str, shown: str) -> tuple[SplitResult, httpx.URL]:
    """The parts, and the URL without its path and what may be secret."""
    try:
        parts = urlsplit(url)
        if "{" in parts.netloc:
            raise ValueError("the host cannot be a template, only the path can")
        if _leads_elsewhere(parts.path):
            raise ValueError("its path has . or .. in it")
        origin = httpx.URL(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
        if parts.scheme not in ("http", "https") or not origin.host:
            raise ValueError("it must begin with http:// or https:// and a host")
    except (ValueError, httpx.InvalidURL) as error:
        raise unusable(url, f"is no address of a web hook: {error}", shown) from None
    return parts, origin


def _leads_elsewhere(path: str) -> bool:
    return not {".", ".."}.isdisjoint(path.split("/"))


def _segment(value: str | None) -> Any:
    return None if value is None else quote(value, safe="")


def _basic(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    credentials = f"{unquote(user)}:{unquote(password or '')}"
    return {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
