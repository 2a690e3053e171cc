"""From PostgreSQL to Kafka: against the loop that one would write instead."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
from confluent_kafka import Producer

from postroom.message import CREATED_HEADER, EPOCH_HEADER, ID_HEADER, KEY_HEADER

from .backlog import Backlog, fill
from .brokers import BROKERS, Kafka, check
from .drains import UNIT, copied
from .interleave import Comparison
from .postgresql import DELETE, SELECT
from .publish import KEYS, at_new_place, through_relay
from .run import Run


def ownloop(run: Run) -> Comparison:
    """The relay against a loop over both clients, on the same rows, with the same headers: read 500, send them, wait
    until all are acknowledged, delete them. It has no retries, no leases and no other worker."""
    broker, notes = BROKERS[run.to](), dict[str, str]()
    template = fill(run.database, Backlog(messages=run.messages, keys=KEYS))

    def by_hand(place: str) -> float:
        with copied(run.database, template) as url:
            return asyncio.run(loop(url, place, run.messages))

    return Comparison(
        ours=through_relay(run, broker, template, notes, hot=False),
        reference=at_new_place(broker, by_hand),
        unit=UNIT,
        reference_is=f"a loop over asyncpg and confluent-kafka, to {broker.version()}",
        notes=notes,
    )


async def loop(url: str, place: str, messages: int) -> float:
    connection = await asyncpg.connect(url)
    producer = Producer(Kafka().settings())
    producer.list_topics(place, timeout=10)
    answered: list[object] = []
    start = time.perf_counter()
    while rows := await connection.fetch(SELECT):
        for row in rows:
            send(producer, place, row, answered)
        producer.flush(120)
        await connection.execute(DELETE, [row["position"] for row in rows])
    elapsed = time.perf_counter() - start
    await connection.close()
    check(answered.count(None), messages)
    return messages / elapsed


def send(producer: Producer, place: str, row: Any, answered: list[object]) -> None:
    headers: Any = {
        ID_HEADER: row["id"],
        EPOCH_HEADER: "1",
        KEY_HEADER: row["key"],
        CREATED_HEADER: row["created_at"].isoformat(),
        "content-type": row["content_type"],
    }
    producer.produce(
        place, row["payload"], row["key"], headers=headers, on_delivery=lambda error, _: answered.append(error)
    )
    producer.poll(0)
