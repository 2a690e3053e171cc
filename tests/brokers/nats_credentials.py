"""Credentials for NATS: an operator, an account and a user, as `nsc` makes them; and what the client signs with."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OPERATOR, ACCOUNT, USER, SEED = 14 << 3, 0, 20 << 3, 18 << 3
"""What a key begins with: the letters O, A, U and S."""

SETTINGS = "operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {name}: {account} }}\n"


def _base32(data: bytes) -> str:
    checked = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


class Key:
    def __init__(self, kind: int) -> None:
        self._kind, self._seed = kind, secrets.token_bytes(32)
        self._private = Ed25519PrivateKey.from_private_bytes(self._seed)

    @property
    def name(self) -> str:
        return _base32(bytes([self._kind]) + self._private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        return _base32(bytes([SEED | self._kind >> 5, (self._kind & 31) << 3]) + self._seed)

    def token(self, subject: str, claims: dict[str, Any]) -> str:
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {
            "jti": secrets.token_hex(8),
            "iat": 1,
            "iss": self.name,
            "name": "tests",
            "sub": subject,
            "nats": claims,
        }
        said = f"{_base64(json.dumps(head).encode())}.{_base64(json.dumps(body).encode())}"
        return f"{said}.{_base64(self._private.sign(said.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def make_credentials(file: Path) -> str:
    """Written to the file; the settings of a server that takes them."""
    operator, account, user = Key(OPERATOR), Key(ACCOUNT), Key(USER)
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    limits = {**unlimited, "wildcards": True, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    token = account.token(user.name, {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1})
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return SETTINGS.format(
        operator=operator.token(operator.name, {"type": "operator", "version": 2}),
        name=account.name,
        account=operator.token(account.name, {"type": "account", "version": 2, "limits": limits}),
    )


class _Pair:
    def __init__(self, seed: bytearray) -> None:
        text = seed.decode()
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
        self._private = Ed25519PrivateKey.from_private_bytes(raw[2:34])

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def wipe(self) -> None:
        pass


def stand_in_for_nkeys() -> ModuleType:
    """What the client needs of that library."""
    module: Any = ModuleType("nkeys")
    module.__spec__ = ModuleSpec("nkeys", None)
    module.from_seed = _Pair
    return module
