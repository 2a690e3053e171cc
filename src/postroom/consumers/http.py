"""Web hooks: a request of Starlette or FastAPI, or the headers and the body of any other.

A signature is not checked here: that is for a library of Standard Webhooks, before anything is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import unquote

from ..wire.http_headers import AS_THEY_ARE
from ..wire.received import Headers, Received
from ..wire.received import received as read


async def received(request: Any, *, topic: str = "") -> Received:
    """A request with `headers` and an awaitable `body()`."""
    return received_from(request.headers, await request.body(), topic=topic)


def received_from(headers: Headers, body: bytes, *, topic: str = "") -> Received:
    """Headers as a mapping, or as pairs of bytes, as in the scope of an ASGI application. Special characters in them
    are percent codes, as web hooks and CloudEvents have them; names are in lower case."""
    return read([_spelled_out(name, value) for name, value in _pairs(headers)], body, topic=topic)


def _pairs(headers: Headers) -> Iterable[tuple[Any, Any]]:
    return cast("Mapping[Any, Any]", headers).items() if isinstance(headers, Mapping) else headers


def _spelled_out(name: str | bytes, value: str | bytes) -> tuple[str, str]:
    name = (name.decode("latin-1") if isinstance(name, bytes) else name).lower()
    value = value.decode("latin-1") if isinstance(value, bytes) else value
    return name, value if name in AS_THEY_ARE else unquote(value)
