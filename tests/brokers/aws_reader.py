"""The receiving end of SQS and SNS, with boto3: queues are emptied, and what was in them is remembered."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request as Forwarded
from urllib.request import urlopen

import boto3
from botocore.config import Config

from postroom.testing.publisher_contract import Received
from tests.brokers.http_server import Answer, HttpServer, Request

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
        self._queues: dict[str, str] = {}
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
            while not self._closed.wait(0.25):
                self.take(name)

        self._helper = threading.Thread(target=help)
        self._helper.start()

    def take(self, name: str) -> list[dict[str, Any]]:
        """All there was so far, oldest first."""
        with self._lock:
            self._take(name)
            return list(self._taken)

    def _take(self, name: str) -> None:
        if name not in self._queues:
            self._queues[name] = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
        queue = self._queues[name]
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


class PickySqs:
    """Stands before SQS, refuses entries, and may say that it is all too much."""

    def __init__(self, address: str, server: HttpServer) -> None:
        self._upstream, self.address = address, server.address
        self.refused: set[str] = set()
        """The ids of messages."""
        self.is_throttling = False

    def react(self, request: Request) -> Answer:
        asked = json.loads(request.body)
        if self.is_throttling and "Entries" in asked:
            return _answer({"__type": "ThrottlingException", "message": "rate exceeded"}, status=400)
        failed = [entry for entry in asked.get("Entries", ()) if headers_of(entry)["postroom-id"] in self.refused]
        asked["Entries"] = [entry for entry in asked.get("Entries", ()) if entry not in failed]
        said: dict[str, Any] = {"Successful": []}
        if asked["Entries"] or not failed:
            said = self._forward(request, asked)
        refusal = {"SenderFault": True, "Code": "InvalidMessageContents", "Message": "not these words"}
        said["Failed"] = [*said.get("Failed", ()), *({"Id": entry["Id"], **refusal} for entry in failed)]
        return _answer(said)

    def _forward(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        names = ("authorization", "content-type", "x-amz-target", "x-amz-date", "host")
        headers = {name: value for name, value in request.headers.items() if name in names}
        with urlopen(Forwarded(f"{self._upstream}/", json.dumps(asked).encode(), headers), timeout=20) as answer:
            return json.loads(answer.read())


def _answer(said: dict[str, Any], status: int = 200) -> Answer:
    headers = {"content-type": "application/x-amz-json-1.0"}
    return Answer(status=status, body=json.dumps(said).encode(), headers=headers)


@contextmanager
def picky_sqs(address: str) -> Iterator[PickySqs]:
    with HttpServer() as server:
        picky = PickySqs(address, server)
        server.react = picky.react
        yield picky


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
