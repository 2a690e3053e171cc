"""The servers by name, and what may be asked of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tests.services.databases import at_database
from tests.services.kafka import Kafka
from tests.services.mariadb import MariaDB
from tests.services.mosquitto import Mosquitto
from tests.services.moto import Moto
from tests.services.nats import Nats
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL
from tests.services.processes import ServerUnavailable
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis, Valkey
from tests.services.server import DatabaseServer, Server

OLDEST = PostgreSQL(15, variable="POSTROOM_TEST_POSTGRESQL_URL", package="postgresql-15")
NEWEST = PostgreSQL(18, variable="POSTROOM_TEST_POSTGRESQL_NEWEST_URL")
MARIADB = MariaDB(variable="POSTROOM_TEST_MYSQL_URL")
PGBOUNCER = PgBouncer(OLDEST, variable="POSTROOM_TEST_PGBOUNCER_URL")

DATABASES: dict[str, DatabaseServer] = {server.name: server for server in (OLDEST, NEWEST, MARIADB, PGBOUNCER)}
BROKERS: dict[str, Server] = {
    server.name: server
    for server in (
        Kafka(variable="POSTROOM_TEST_KAFKA_URL"),
        RabbitMQ(variable="POSTROOM_TEST_AMQP_URL"),
        Redis(variable="POSTROOM_TEST_REDIS_URL"),
        Valkey(variable="POSTROOM_TEST_VALKEY_URL"),
        Nats(variable="POSTROOM_TEST_NATS_URL"),
        Mosquitto(variable="POSTROOM_TEST_MQTT_URL"),
        Moto(variable="POSTROOM_TEST_AWS_URL"),
    )
}
SERVERS: dict[str, Server] = {**DATABASES, **BROKERS}
NAMES = tuple(SERVERS)

_versions: dict[str, str] = {}
_failures: dict[str, str] = {}


def url(name: str) -> str:
    """The URL of an administrator, without a driver; the server is started unless it runs.

    Raises `ServerUnavailable` if it cannot be had. What failed once in a process is not tried again there.
    """
    if name in _failures:
        raise ServerUnavailable(_failures[name])
    server = SERVERS[name]
    try:
        address = server.url()
        _versions[name] = _versions.get(name) or server.ask_version(address)
    except Exception as error:
        _failures[name] = (
            f"{name} cannot be had: {error}\nTo use a server of your own, give its URL in {server.variable}."
        )
        raise ServerUnavailable(_failures[name]) from error
    return address


def version(name: str) -> str:
    """Product and version as the server itself says, such as “PostgreSQL 15.18”."""
    url(name)
    return _versions[name]


def used() -> dict[str, str]:
    """The servers this process has asked for, and their versions."""
    return dict(_versions)


@contextmanager
def fresh_database(name: str) -> Iterator[str]:
    """The URL of a new database on this server, dropped afterwards, whoever is still connected to it."""
    administrator = url(name)
    databases = DATABASES[name].databases
    database = f"postroom_test_{secrets.token_hex(6)}"
    databases.create(administrator, database)
    try:
        yield at_database(administrator, database)
    finally:
        databases.drop(url(name), database)


def disconnect(name: str, database_url: str) -> None:
    """Disconnect whoever uses a database of this server."""
    DATABASES[name].databases.disconnect(database_url)


def empty(name: str, database_url: str) -> None:
    """Disconnect whoever uses a database of this server, and drop all that is in it.

    Milliseconds, where a new database of PostgreSQL takes up to a tenth of a second and a checkpoint.
    """
    DATABASES[name].databases.empty(database_url)
