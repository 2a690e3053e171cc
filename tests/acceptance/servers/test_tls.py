"""A database that wants an encrypted connection, and a client that wants to know whom it talks to."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from postroom import ConfigurationError, Outbox, Relay
from postroom.errors import StoreUnavailable
from postroom.publishers.memory import MemoryPublisher
from postroom.relay.wiring import store_for
from postroom.stores import sql_server
from tests.acceptance.servers.conftest import Named, emptied
from tests.acceptance.servers.database import TOPIC, Database
from tests.acceptance.servers.deliveries import Complaints, relay_running
from tests.proxy import Proxy
from tests.services.places import CERTIFICATES
from tests.waiting import eventually

SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"


class TlsProxy(Proxy):
    """What PostgreSQL does when it has a certificate."""

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(8) != SSL_REQUEST:
            raise ConnectionRefusedError("only encrypted connections")
        writer.write(b"S")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATES / "server.pem")
        await writer.start_tls(context)


@pytest.fixture(params=["postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy", "mysql+aiomysql"])
def scheme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def database(scheme: str, database_of_this_worker: Named) -> Iterator[Database]:
    server = "mariadb" if scheme.startswith("mysql") else "postgresql-15"
    with closing(emptied(server, database_of_this_worker)) as database:
        yield database


@pytest.fixture
def url(scheme: str, database: Database) -> Iterator[str]:
    """Up to the name of the file with the authority's certificate."""
    if not database.is_postgresql:
        yield f"{database.url.replace('mysql', scheme, 1)}?ssl_ca="
        return
    with TlsProxy(database.url) as proxy:
        yield f"{proxy.url.replace('postgresql', scheme, 1)}?sslmode=verify-full&sslrootcert="


def test_a_relay_talks_to_a_server_whose_certificate_it_can_verify(database: Database, url: str) -> None:
    publisher = MemoryPublisher()
    with relay_running(database, publisher, url=f"{url}{CERTIFICATES / 'ca.pem'}"):
        with database.connection() as connection:
            Outbox().add(connection, TOPIC, {"version": 1})
            connection.commit()
        eventually(lambda: publisher.messages)
    gc.collect()  # which warns of what was left open


async def test_a_relay_does_not_talk_to_a_server_whose_certificate_it_cannot_verify(url: str) -> None:
    complaints = Complaints()
    relay = Relay(f"{url}{CERTIFICATES / 'other.pem'}", MemoryPublisher(), observers=[complaints])
    running = asyncio.create_task(relay.run())
    await asyncio.to_thread(eventually, lambda: complaints.errors)
    relay.stop()
    await running
    assert "certificate verify failed" in complaints.errors[0].lower()


@pytest.mark.parametrize("scheme", ["mysql+asyncmy", "mysql+aiomysql"], indirect=True)
async def test_a_server_that_falls_silent_is_not_waited_for_to_say_goodbye(
    database: Database, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(database.url) as proxy:
        url = f"{proxy.url.replace('mysql', scheme, 1)}?ssl_ca={CERTIFICATES / 'ca.pem'}"
        store: Any = store_for(url, Outbox())
        await store.open()
        proxy.stall()
        monkeypatch.setattr(sql_server, "STATEMENT_TIMEOUT", 1.0)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable):
                await store.left()
        assert store._opened().pool.checkedout() == 0
        proxy.heal()
        await store.close()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"sslrootcert=/nowhere/ca\.pem"):
        Relay("postgresql://shop@db.example/shop?sslrootcert=/nowhere/ca.pem", MemoryPublisher())
