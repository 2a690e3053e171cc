"""The doctor asks each broker, about the topics that wait for it, and sends nothing."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from postroom import Desk, Outbox
from tests.brokers.aws_reader import url_of
from tests.conftest import server_url

DESTINATIONS: dict[str, Callable[[str], str]] = {
    "kafka": lambda address: address,
    "rabbitmq": lambda address: f"{address}?exchange=amq.topic",
    "redis": lambda address: address,
    "nats": lambda address: address,
    "moto": lambda address: url_of("sqs", address),
}
MISSING = {"kafka", "nats", "moto"}
"""What must be made before it can take messages."""


@pytest.mark.parametrize("broker", DESTINATIONS)
async def test_a_broker_is_asked_about_the_topics_that_wait(broker: str, tmp_path: Path) -> None:
    url, topic = DESTINATIONS[broker](server_url(broker)), f"orders-{secrets.token_hex(6)}"
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        Outbox().add(connection, topic, {}, key="a")
    async with Desk(f"sqlite:///{tmp_path / 'shop.db'}") as desk:
        [found] = [one for one in await desk.doctor(url) if one.name == "destination"]
    assert found.verdict == ("problem" if broker in MISSING else "ok"), found
    assert (found.remedy is None) == (found.verdict == "ok")
    assert (topic in found.seen) == (broker in MISSING), found


@pytest.mark.parametrize(("broker", "url"), [
    ("kafka", "kafka://127.0.0.1:1"),
    ("rabbitmq", "amqp://guest:secret@127.0.0.1:1/"),
    ("nats", "nats://127.0.0.1:1"),
    ("http", "http://127.0.0.1:1/hook#allow_private=true"),
    ("moto", url_of("sqs", "http://127.0.0.1:1")),
])  # fmt: skip
async def test_a_broker_that_is_not_there_is_a_problem(broker: str, url: str, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    async with Desk(f"sqlite:///{tmp_path / 'shop.db'}") as desk:
        await desk.init()
        [found] = [one for one in await desk.doctor({"orders": url}) if one.name == "destination"]
    assert found.verdict == "problem", found
    assert found.remedy is not None
    assert "secret" not in found.seen
