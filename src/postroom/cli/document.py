"""The shapes of the JSON documents. Keys are never renamed and never left out; times are ISO 8601."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from ..message import SLOTS, Message
from ..ports import Entry, Finding, Hold, Status
from ..redact import redact
from ..relay.relay import Report

Document = dict[str, Any]


def of_entry(entry: Entry) -> Document:
    message = entry.message
    encoding, payload = read_payload(message)
    return {
        "id": message.id,
        "state": entry.state,
        "topic": message.topic,
        "key": message.key,
        "type": message.type,
        "created_at": moment(message.created_at),
        "due_at": moment(entry.due_at),
        "expires_at": moment(message.expires_at),
        "settled_at": moment(entry.settled_at),
        "attempts": entry.attempts,
        "replays": message.replays,
        "held": entry.held,
        "parked": entry.parked,
        "reason": entry.reason,
        "error": redacted(entry.error),
        "position": message.position,
        "slot": message.slot,
        "sequence": message.sequence,
        "generation": message.generation,
        "headers": dict(message.headers),
        "content_type": message.content_type,
        "payload_encoding": encoding,
        "payload": payload,
    }


def of_hold(hold: Hold, now: datetime) -> Document:
    return {
        "topic": hold.topic,
        "key": hold.key,
        "status": hold.status,
        "message_id": hold.message_id,
        "attempts": hold.attempts,
        "since": moment(hold.since),
        "until": moment(until_of(hold, now)),
        "waiting": hold.waiting,
        "error": redacted(hold.error),
        "slot": hold.slot,
        "position": hold.position,
    }


def of_status(status: Status, store: str, warnings: list[str]) -> Document:
    return {
        "outbox": status.outbox,
        "store": store,
        "counts": dict(status.counts),
        "reasons": dict(status.reasons),
        "oldest_pending_seconds": status.oldest_pending_seconds,
        "holds": status.holds,
        "parked": status.parked,
        "relays": [_plain(relay) for relay in status.relays],
        "slots_owned": status.slots_owned,
        "slots": SLOTS,
        "breakers": [of_breaker(breaker) for breaker in status.breakers],
        "schema_version": status.meta.version,
        "min_compatible": status.meta.min_compatible,
        "claim": status.meta.claim or None,
        "warnings": warnings,
    }


def of_finding(finding: Finding) -> Document:
    return {**asdict(finding), "seen": redact(finding.seen), "remedy": redacted(finding.remedy)}


def of_breaker(breaker: Mapping[str, Any]) -> Document:
    """A destination that was reported unavailable and has not answered since is tripped."""
    return {**_plain(breaker), "tripped": breaker.get("tripped_at") is not None}


def of_report(report: Report, unavailable: Mapping[str, str]) -> Document:
    return {**asdict(report), "unavailable": dict(unavailable)}


def read_payload(message: Message) -> tuple[str, Any]:
    """How the payload is written in JSON, and the payload: as its own JSON value, as text, or else as base64."""
    data: bytes = message.payload or b""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(data).decode()
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # Python reads NaN and 1e999, which nobody could read back
    except (ValueError, RecursionError):
        return "text", text
    return "json", value


def until_of(hold: Hold, now: datetime) -> datetime | None:
    return None if hold.due_in is None else now + timedelta(seconds=hold.due_in)


def moment(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def redacted(text: str | None) -> str | None:
    """Errors come from clients, and some quote their URL."""
    return None if text is None else redact(text)


def _plain(facts: Mapping[str, Any]) -> Document:
    return {name: _plain_value(value) for name, value in facts.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return moment(value)
    return redact(value) if isinstance(value, str) else value
