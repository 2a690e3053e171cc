"""Messages in a topic of Kafka: python kafka.py kafka://localhost:9092 orders"""

import asyncio
import sqlite3
import sys
from typing import Any

from confluent_kafka import Consumer

from postroom import Outbox, Relay

url, topic = sys.argv[1:]
outbox = Outbox()

connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, topic, {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()

relay = Relay("sqlite:///shop.db", url, outbox=outbox)
print("delivered", asyncio.run(relay.drain()).delivered)

brokers = url.removeprefix("kafka://")
consumer = Consumer({"bootstrap.servers": brokers, "group.id": "example", "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
if record := consumer.poll(30):
    headers: dict[str, Any] = dict(record.headers() or [])
    print((record.key() or b"").decode(), headers["postroom-type"].decode(), (record.value() or b"").decode())
consumer.close()
