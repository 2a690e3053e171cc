"""The headers of a web hook: those of the message, as HTTP can carry them, and the signatures of Standard Webhooks."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from ..errors import ConfigurationError, MessageRejected
from .envelope import CONTENT_TYPE, TRACE

FORBIDDEN = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that are HTTP's own."""

AS_THEY_ARE = frozenset({CONTENT_TYPE, *TRACE})
"""Headers that have rules of their own for special characters."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"(?:[!-$&-~](?:[ -$&-~]*[!-$&-~])?)?")
"""What HTTP carries as it is. A percent sign would be taken for the beginning of a code."""
_LEGAL = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_SAFE = "".join(map(chr, (*range(0x23, 0x25), 0x21, *range(0x26, 0x7F))))
"""What CloudEvents leaves alone: visible, and neither a quotation mark nor a percent sign."""


def carried_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """In lower case, as HTTP/2 has them, and spelled in ASCII."""
    carried: dict[str, str] = {}
    for given, value in headers.items():
        name = given.lower()
        if not _TOKEN.fullmatch(name) or name in FORBIDDEN:
            raise MessageRejected(f"HTTP cannot carry a header named {given!r}", permanent=True)
        if name in carried:
            raise MessageRejected(f"it has two headers that HTTP takes for one: {given!r}", permanent=True)
        carried[name] = spelled(name, value)
    return carried


def spelled(name: str, value: str) -> str:
    """Special characters as percent codes of their UTF-8, as the binding of CloudEvents for HTTP says."""
    is_fine = _LEGAL if name in AS_THEY_ARE else _PLAIN
    if is_fine.fullmatch(value) and not (name.startswith("ce-") and {" ", '"'}.intersection(value)):
        return value
    return quote(value, safe=_SAFE, errors="replace")


def fixed_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in FORBIDDEN:
            raise ConfigurationError(f"HTTP cannot carry a header named {name!r}")
        if not _LEGAL.fullmatch(value):
            raise ConfigurationError(f"the value of the header {name!r} must be in visible ASCII")
    return {name.lower(): value for name, value in headers.items()}


# --- signatures


def signing_keys(secrets: str | Sequence[str]) -> list[bytes]:
    if isinstance(secrets, str):
        secrets = re.split(r",|\s+(?=whsec_)", secrets)
    return [_key(part.strip()) for part in secrets]


def _key(secret: str) -> bytes:
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ConfigurationError("a secret must be a key in base64, as in 'whsec_…'")
    return key


def signature(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """As Standard Webhooks says, one for each key."""
    signed = b"%b.%d.%b" % (id.encode(), timestamp, body)
    signatures = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
