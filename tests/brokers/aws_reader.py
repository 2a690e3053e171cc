"""The receiving end of SQS and SNS, with boto3: queues are emptied, and what was in them is remembered."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any
from urllib.parse import urlencode

import boto3
from botocore.config import Config

from postroom.testing.publisher_contract import Received

REGION = "eu-central-1"
ACCOUNT = "123456789012"
"""That of everybody at moto."""


def url_of(service: str, address: str, **options: str) -> str:
    account = {"account": ACCOUNT} if service == "sns" else {}
    return f"{service}://test:test@{REGION}?{urlencode({'endpoint': address, **account, **options})}"


class Aws:
    def __init__(self, address: str) -> None:
        given: dict[str, Any] = {
            "region_name": REGION,
            "endpoint_url": address,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "config": Config(connect_timeout=5, read_timeout=30),
        }
        self._sqs: Any = boto3.client("sqs", **given)
        self._sns: Any = boto3.client("sns", **given)
        self._taken: list[dict[str, Any]] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._helper: threading.Thread | None = None

    def make_queue(self, name: str) -> str:
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return self._sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def make_topic(self, name: str) -> None:
        """With a queue of the same name that gets everything, as it is."""
        queue = self.make_queue(name)
        attributes = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        topic = self._sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
        target = self._sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        self._sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=target, Attributes={"RawMessageDelivery": "true"})

    def keep_taking(self, name: str) -> None:
        """In the background: moto is slow with queues in which there is much."""

        def help() -> None:
            while not self._closed.wait(0.02):
                self.take(name)

        self._helper = threading.Thread(target=help)
        self._helper.start()

    def take(self, name: str) -> list[dict[str, Any]]:
        """All there was so far, oldest first."""
        with self._lock:
            self._take(name)
            return list(self._taken)

    def _take(self, name: str) -> None:
        queue = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
        while found := self._sqs.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        ).get("Messages"):
            self._taken += found
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)]
            self._sqs.delete_message_batch(QueueUrl=queue, Entries=entries)

    def close(self) -> None:
        self._closed.set()
        if self._helper is not None:
            self._helper.join()
        self._sqs.close()
        self._sns.close()


def headers_of(message: dict[str, Any]) -> dict[str, str]:
    headers = {name: value["StringValue"] for name, value in message.get("MessageAttributes", {}).items()}
    return headers | json.loads(headers.pop("postroom-headers", "{}"))


def payload_of(message: dict[str, Any]) -> bytes | None:
    how = headers_of(message).get("postroom-body")
    special = {"none": None, "empty": b""}
    if how in special:
        return special[how]
    return base64.b64decode(message["Body"]) if how == "base64" else message["Body"].encode()


def received(topic: str, message: dict[str, Any]) -> Received:
    headers, payload = headers_of(message), payload_of(message)
    assert payload is not None
    return Received(
        id=headers["postroom-id"], topic=topic, key=headers.get("postroom-key"), payload=payload, headers=headers
    )
