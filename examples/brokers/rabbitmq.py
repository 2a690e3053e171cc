"""Messages in a queue of RabbitMQ: python rabbitmq.py amqp://guest:guest@localhost:5672/"""

import asyncio
import sqlite3
import sys

import pika

from postroom import Outbox, Relay

url = sys.argv[1]
outbox = Outbox()

connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, "orders", {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()

relay = Relay("sqlite:///shop.db", f"{url}?declare=true", outbox=outbox)  # its queue, if it is not there
print("delivered", asyncio.run(relay.drain()).delivered)

broker = pika.BlockingConnection(pika.URLParameters(url))
_, properties, body = broker.channel().basic_get("orders", auto_ack=True)
headers = properties.headers if properties and properties.headers else {}
print(headers["postroom-key"], headers["postroom-type"], (body or b"").decode())
broker.close()
