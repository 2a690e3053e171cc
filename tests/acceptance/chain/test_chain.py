"""Kafka in, a change of the database, RabbitMQ out: killed again and again, each order has its effects once."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]
from sqlalchemy import create_engine, make_url, text

from postroom import Inbox, Relay
from postroom.consumers import rabbitmq
from postroom.message import new_id
from tests.acceptance.chain.victim import Orders, main
from tests.conftest import server_url

ROUNDS = int(os.environ.get("POSTROOM_ROUNDS", "50"))
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.acceptance.chain.victim", "confluent_kafka", "sqlalchemy.dialects.postgresql"])


class Kafka:
    """Where orders come from, some of them twice."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._producer, self._topic = Producer({"bootstrap.servers": brokers}), topic
        self.orders: dict[int, str] = {}

    def send(self, count: int) -> None:
        for _ in range(count):
            number = len(self.orders) + 1
            self.orders[number] = new_id()
            self._produce(number)
        self._produce(max(1, len(self.orders) - count))
        assert self._producer.flush(30) == 0

    def _produce(self, number: int) -> None:
        payload = json.dumps({"id": number, "total": 10 * number})
        headers: Any = {"postroom-id": self.orders[number]}
        self._producer.produce(self._topic, payload, f"order-{number}", headers=headers)


def kill_points() -> Iterator[dict[str, int]]:
    """Ever later, in the handler and in the relay by turns."""
    for number in range(ROUNDS):
        yield {"line": 1 + number * 29} if number % 2 == 0 else {"moment": number}


def run(orders: Orders) -> int | None:
    process = FORKED.Process(target=main, args=(orders,))
    process.start()
    process.join(120)
    assert not process.is_alive()
    return process.exitcode


@contextmanager
def topic_on(brokers: str) -> Iterator[str]:
    name, admin = f"orders-{secrets.token_hex(6)}", AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)


@pytest.mark.timeout(900)
def test_each_order_has_its_effects_once_wherever_the_service_is_killed(empty_database: Callable[[str], str]) -> None:
    database = make_url(empty_database("postgresql-15")).set(drivername="postgresql+psycopg")
    url, brokers = database.render_as_string(hide_password=False), urlsplit(server_url("kafka")).netloc
    amqp, queue = server_url("rabbitmq"), f"invoices-{secrets.token_hex(6)}"
    destination = f"{amqp}?routing_key={queue}&declare=true"
    with topic_on(brokers) as topic:
        kafka, endings = Kafka(brokers, topic), Counter[int | None]()
        for point in kill_points():
            kafka.send(2)
            endings[run(Orders(url, brokers, destination, topic, idle=6, **point))] += 1
        assert run(Orders(url, brokers, destination, topic, idle=6)) == 0
    asyncio.run(Relay(url, destination).drain())
    assert endings[-9] >= ROUNDS * 0.9, endings
    assert set(endings) <= {-9, 0}
    invoices = written(url)
    assert Counter(order for _, order in invoices) == Counter(list(kafka.orders))
    heard = read_all(amqp, queue)
    assert effects(url, heard) == Counter(invoice for invoice, _ in invoices)


def written(url: str) -> list[tuple[int, int]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = [(row.id, row.order_id) for row in connection.execute(text("SELECT id, order_id FROM invoices"))]
        left = connection.execute(text("SELECT count(*) FROM postroom_outbox")).scalar_one()
    engine.dispose()
    assert left == 0
    return rows


def read_all(amqp: str, queue: str) -> list[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp))
    channel, found = connection.channel(), list[Any]()
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(rabbitmq.received(*got))
    channel.queue_delete(queue)
    connection.close()
    return found


def effects(url: str, heard: list[Any]) -> Counter[int]:
    """What a consumer with an inbox of its own does with them."""
    engine, inbox, done = create_engine(url), Inbox("reader"), Counter[int]()
    for received in heard:
        with engine.begin() as connection:
            if inbox.first_time(connection, received.id, consumer="reader"):
                done[json.loads(received.payload)["invoice"]] += 1
    engine.dispose()
    return done
