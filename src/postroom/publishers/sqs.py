"""Queues of Amazon SQS, standard and FIFO."""

from __future__ import annotations

from typing import Any

from ..wire.aws import CONCURRENCY, AwsPublisher
from ..wire.envelope import DEFAULT_SOURCE


class SqsPublisher(AwsPublisher):
    """`sqs://REGION`, with `queue`, a template, for the name of the queue: the topic, unless given, with dashes for
    dots.

    A queue whose name ends with `.fifo` gets the key as group and the id of the message for its deduplication.
    Credentials are found as in any program of AWS, or are in the URL: `sqs://KEY_ID:SECRET@REGION`.
    """

    service = "sqs"
    place = "queue"
    max_size = 1024 * 1024

    def __init__(
        self,
        url: str = "sqs://us-east-1",
        *,
        queue: str = "{topic}",
        endpoint: str | None = None,
        account: str | None = None,
        profile: str | None = None,
        max_size: int | None = None,
        concurrency: int = CONCURRENCY,
        format: str = "postroom",
        source: str = DEFAULT_SOURCE,
    ) -> None:
        super().__init__(
            url,
            queue,
            endpoint=endpoint,
            account=account,
            profile=profile,
            max_size=max_size,
            concurrency=concurrency,
            format=format,
            source=source,
        )
        self._addresses: dict[str, str] = {}

    async def _address(self, client: Any, name: str) -> str:
        if name not in self._addresses:
            await self._look(client, name)
        return self._addresses[name]

    async def _look(self, client: Any, name: str) -> None:
        owner = {} if self._account is None else {"QueueOwnerAWSAccountId": self._account}
        self._addresses[name] = (await client.get_queue_url(QueueName=name, **owner))["QueueUrl"]

    async def _transmit(self, client: Any, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return await client.send_message_batch(QueueUrl=address, Entries=entries)

    def _entry(self, body: str, attributes: dict[str, Any]) -> dict[str, Any]:
        return {"MessageBody": body, "MessageAttributes": attributes}
