"""What the tests of web hooks use."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Collection
from typing import Any

import pytest

from postroom import Message
from postroom.failures import is_unavailable
from postroom.ports import Finding
from postroom.publishers.http import HttpPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from tests.brokers.http_server import HttpServer, SecureServer
from tests.services.places import CERTIFICATES

SECRET = f"whsec_{base64.b64encode(b'a key for the tests, 32 bytes...').decode()}"


def to(server: HttpServer, rest: str = "", **options: Any) -> HttpPublisher:
    """With a path, a query, and options in the fragment."""
    place, _, fragment = rest.partition("#")
    return HttpPublisher(f"{server.address}{place}#allow_private=true&{fragment}".rstrip("&"), **options)


def securely_to(server: SecureServer, host: str = "localhost", authority: str = "ca.pem") -> HttpPublisher:
    return HttpPublisher(
        f"https://{host}:{server.port}/hooks/{{topic}}#allow_private=true&ssl_ca={CERTIFICATES / authority}"
    )


async def send(publisher: HttpPublisher, *messages: Message, timeout: float = 5.0) -> list[BaseException | None]:
    """The answers."""
    batch = await hand_over(publisher, RecordingBatch(messages, timeout))
    await publisher.close()
    assert not batch.violations
    return [batch.answers[message.id] for message in messages]


def is_outage(error: BaseException | None) -> bool:
    return error is not None and is_unavailable(error)


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Names have these addresses, at each lookup the next; the names that were looked up."""
    asked: list[str] = []

    async def getaddrinfo(self: Any, host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


async def examined(publisher: HttpPublisher) -> Finding:
    [finding] = await publisher.examine(["orders"])
    assert (finding.remedy is None) == (finding.verdict == "ok")
    return finding


def streams_of(publisher: HttpPublisher) -> Collection[Any]:
    return publisher._session._network._streams if publisher._session else ()


def publisher_sees_the_end(publisher: HttpPublisher) -> bool:
    return all(stream.get_extra_info("is_readable") for stream in streams_of(publisher))
