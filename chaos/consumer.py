"""A consumer: it writes down what arrives, a line for each message, with other clients than the relay has."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from .checker import Arrival
from .parent import end_with_parent

PAUSE = 0.02
"""Seconds between two looks at a file."""
PATIENCE = 0.3
"""Seconds before a broker that is away is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    address: str
    place: str
    """A topic, a queue, or a file."""
    log: str


async def from_file(orders: Orders) -> AsyncIterator[Arrival]:
    path, rest = Path(orders.place), b""
    path.touch()  # the first relay may not have begun
    with path.open("rb") as file:
        while True:
            if data := file.read(1 << 20):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    with suppress(ValueError):  # whoever wrote this was killed in the middle of it
                        record = json.loads(line)
                        yield arrival(record.get("headers"), record.get("payload"))
            else:
                await asyncio.sleep(PAUSE)


async def from_kafka(orders: Orders) -> AsyncIterator[Arrival]:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    offsets: dict[int, int] = {}
    while True:
        consumer = AIOKafkaConsumer(bootstrap_servers=urlsplit(orders.address).netloc, auto_offset_reset="earliest")
        try:
            await consumer.start()
            parts = [TopicPartition(orders.place, part) for part in consumer.partitions_for_topic(orders.place) or ()]
            if not parts:
                parts = [TopicPartition(orders.place, part) for part in range(PARTITIONS)]
            consumer.assign(parts)
            for part in parts:
                consumer.seek(part, offsets.get(part.partition, 0))
            async for record in consumer:
                if record.offset >= offsets.get(record.partition, 0):
                    offsets[record.partition] = record.offset + 1
                    yield arrival(dict(record.headers), record.value)
        except (KafkaError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(PATIENCE)
        finally:
            await consumer.stop()


async def from_amqp(orders: Orders) -> AsyncIterator[Arrival]:
    import aio_pika
    from aio_pika.exceptions import AMQPError

    while True:
        try:
            async with await aio_pika.connect(orders.address, timeout=5) as connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=200)
                queue = await channel.get_queue(orders.place)
                async with queue.iterator() as messages:
                    async for message in messages:
                        yield arrival(message.headers, message.body, is_again=bool(message.redelivered))
                        await message.ack()
        except (TimeoutError, AMQPError, OSError, RuntimeError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        await asyncio.sleep(PATIENCE)


PARTITIONS = 4
READERS = {"file": from_file, "kafka": from_kafka, "amqp": from_amqp}


def arrival(headers: Any, payload: Any, *, is_again: bool = False) -> Arrival:
    """From what any consumer of Postroom's messages can see. What is wrong with one is for the judge to say."""
    at = time.time()
    try:
        return understood(at, headers, payload, is_again=is_again)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        print(f"cannot be read: {type(error).__name__}: {error}: {headers} {payload}", file=sys.stderr, flush=True)
        return Arrival(at, "", None, None, 0, is_again, is_readable=False)


def understood(at: float, headers: Mapping[str, Any], payload: Any, *, is_again: bool) -> Arrival:
    words = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}
    content = json.loads(payload) if isinstance(payload, bytes) else payload
    number, generation = words.get("postroom-sequence"), words.get("postroom-generation")
    return Arrival(
        at,
        str(words["postroom-id"]),
        words.get("postroom-key"),
        None if number is None else (int(generation or 0), int(number)),
        int(words["postroom-epoch"]),
        is_again,
        (content["id"], content["key"]),
    )


async def consume(orders: Orders, log: TextIO) -> None:
    reader = READERS[urlsplit(orders.address).scheme]
    async for arrived in reader(orders):
        log.write(json.dumps(arrived) + "\n")
        log.flush()


def read_log(path: Path) -> list[Arrival]:
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    arrivals: list[Arrival] = []
    for line in lines:
        read = Arrival(*json.loads(line))
        arrivals.append(read._replace(sequence=tuple(read.sequence) if read.sequence else None, said=tuple(read.said)))
    return arrivals


async def run(orders: Orders) -> None:
    with open(orders.log, "a") as log:
        task = asyncio.ensure_future(consume(orders, log))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(run(Orders(**json.loads(sys.argv[1]))))
