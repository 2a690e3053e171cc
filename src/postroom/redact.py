"""Passwords and tokens taken out of URLs and texts, before anybody prints them."""

from __future__ import annotations

import re

HIDDEN = "***"

_WORD = re.compile(r"\S+")
# Up to the *last* @: a password may hold an unescaped @ or /, and hiding too much is better than showing its tail.
_PASSWORD = re.compile(r"(://[^:/?#@\s]*:)[^@\s]*@(?:[^?#\s]*@)?")
# With these a user without a password is a token; with a database it is only a name.
_LONE_TOKEN = re.compile(r"\b((?:https?|wss?|nats|tls)://)[^:/?#@\s]+@", re.IGNORECASE)
_PARAMETER = re.compile(r"""(^|[?&;#\s])([\w.%-]+)(\s*=\s*)('[^']*'|"[^"]*"|[^&;#\s]+)""")
_SECRET = re.compile(r"pass|pwd|token|secret|credential|auth|key|sasl|signature|^sig$", re.IGNORECASE)
_SIGNING_KEY = re.compile(r"whsec_[\w+/=%-]+")
_HARMLESS = re.compile(r"(?:routing|partition|ordering|message)[-_.]?key|sasl[-_.]mechanisms?", re.IGNORECASE)


def redact(text: str) -> str:
    """The same URL (or connection string, or message with URLs in it) without its secrets; it never raises.

    Hidden are the password in `user:password@`, a token in its place, parameters whose names sound secret, and keys for
    signatures of web hooks.

    >>> redact("amqp://shop:rabbit@broker/orders?heartbeat=5&api_key=1234")
    'amqp://shop:***@broker/orders?heartbeat=5&api_key=***'
    """
    text = _PARAMETER.sub(_hide_secret, _WORD.sub(_hide_credentials, text))
    return _SIGNING_KEY.sub(f"whsec_{HIDDEN}", text)


def _hide_credentials(match: re.Match[str]) -> str:
    # Only what is before an @ can be a credential; looking no further keeps long texts from taking long.
    word, end = match[0], match[0].rfind("@") + 1
    before = _PASSWORD.sub(rf"\1{HIDDEN}@", word[:end])
    return _LONE_TOKEN.sub(rf"\1{HIDDEN}@", before) + word[end:]


def _hide_secret(match: re.Match[str]) -> str:
    before, name, equals, _ = match.groups()
    if _SECRET.search(name) and not _HARMLESS.fullmatch(name):
        return f"{before}{name}{equals}{HIDDEN}"
    return match[0]
