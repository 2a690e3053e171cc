"""Messages in a FIFO queue of SQS: python sqs_fifo.py http://localhost:5000 (or nothing, for AWS itself)"""

import asyncio
import sqlite3
import sys
from typing import Any

import boto3

from postroom import Outbox, Relay

endpoint = sys.argv[1] if len(sys.argv) > 1 else None
outbox = Outbox()

connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, "shop.orders", {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()

# The queue is shop-orders.fifo. Credentials are looked for as always; here they are for a server on this machine.
url = "sqs://eu-central-1?queue={topic}.fifo"
if endpoint is not None:
    url = f"sqs://test:test@eu-central-1?queue={{topic}}.fifo&endpoint={endpoint}"
print("delivered", asyncio.run(Relay("sqlite:///shop.db", url, outbox=outbox).drain()).delivered)

keys: dict[str, Any] = {"aws_access_key_id": "test", "aws_secret_access_key": "test"} if endpoint else {}
sqs: Any = boto3.client("sqs", region_name="eu-central-1", endpoint_url=endpoint, **keys)
queue = sqs.get_queue_url(QueueName="shop-orders.fifo")["QueueUrl"]
for message in sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]:
    attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    print(attributes["postroom-key"], attributes["postroom-type"], message["Body"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
sqs.close()
