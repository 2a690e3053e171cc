"""Topics of Amazon SNS, standard and FIFO."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError
from ..redact import redact
from ..wire.aws import CONCURRENCY, AwsPublisher
from ..wire.envelope import DEFAULT_SOURCE


class SnsPublisher(AwsPublisher):
    """`sns://REGION?account=123456789012`, with `topic`, a template, for the name of the topic: that of the message
    unless given, with dashes for dots.

    A topic whose name ends with `.fifo` gets the key as group and the id of the message for its deduplication.
    Credentials are found as in any program of AWS, or are in the URL: `sns://KEY_ID:SECRET@REGION`.
    """

    service = "sns"
    place = "topic"
    max_size = 256 * 1024

    def __init__(
        self,
        url: str = "sns://us-east-1",
        *,
        topic: str = "{topic}",
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
            topic,
            endpoint=endpoint,
            account=account,
            profile=profile,
            max_size=max_size,
            concurrency=concurrency,
            format=format,
            source=source,
        )
        if self._account is None:
            raise ConfigurationError(
                f"{redact(url)!r} needs account=, the number of the account that has the topics, as it is part of "
                "their names"
            )

    async def _address(self, client: Any, name: str) -> str:
        region = client.meta.region_name
        partition = client.meta.partition
        return f"arn:{partition}:sns:{region}:{self._account}:{name}"

    async def _look(self, client: Any, name: str) -> None:
        await client.get_topic_attributes(TopicArn=await self._address(client, name))

    async def _transmit(self, client: Any, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return await client.publish_batch(TopicArn=address, PublishBatchRequestEntries=entries)

    def _entry(self, body: str, attributes: dict[str, Any]) -> dict[str, Any]:
        return {"Message": body, "MessageAttributes": attributes}
