"""SQS, and SNS through it: a message as boto3 and aiobotocore give it, and as Lambda gets it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, cast

from ..wire.received import Received
from ..wire.received import received as read

HEADERS_ATTRIBUTE = "postroom-headers"
BODY_ATTRIBUTE = "postroom-body"
"""As the publisher has them: headers that could not be attributes, and how the body is to be read."""


Attributes = Mapping[str, Mapping[str, Any]]


def received(message: Mapping[str, Any], *, topic: str = "") -> Received:
    """Ask for `MessageAttributeNames=["All"]`: without them there is no id. What SNS has wrapped is unwrapped."""
    body: str = message["Body"] if "Body" in message else message["body"]
    attributes: Attributes = message.get("MessageAttributes") or message.get("messageAttributes") or {}
    if not attributes and (notification := _notification(body)):
        body, attributes = notification["Message"], notification.get("MessageAttributes") or {}
    headers = {name: _value(attribute) for name, attribute in attributes.items()}
    headers |= json.loads(headers.pop(HEADERS_ATTRIBUTE, "{}"))
    return read(headers, _payload(body, headers.pop(BODY_ATTRIBUTE, None)), topic=topic)


def _notification(body: str) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(body)
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) and {"Message", "TopicArn"} <= {*found} else None


def _value(attribute: Mapping[str, Any]) -> str:
    return next((attribute[name] for name in ("StringValue", "stringValue", "Value") if name in attribute), "")


def _payload(body: str, how: str | None) -> bytes | None:
    if how == "base64":
        return base64.b64decode(body)
    return {"none": None, "empty": b""}.get(how or "", body.encode())
