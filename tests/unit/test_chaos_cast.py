"""What the chaos harness's consumer and writers make of what they get."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import exc

from chaos.consumer import arrival, read_log
from chaos.writer import is_of_the_database
from postroom.errors import NoTransactionError

HEADERS = {"postroom-id": "1", "postroom-key": "a", "postroom-epoch": "3", "postroom-sequence": "2"}
PAYLOAD: dict[str, Any] = {"id": "1", "key": "a"}


@pytest.mark.parametrize("payload", [PAYLOAD, json.dumps(PAYLOAD).encode()])
@pytest.mark.parametrize("headers", [HEADERS, {name: value.encode() for name, value in HEADERS.items()}])
def test_a_message_is_understood_as_every_client_gives_it(headers: dict[str, Any], payload: Any) -> None:
    found = arrival(headers, payload, is_again=True)
    assert (found.id, found.key, found.sequence, found.epoch) == ("1", "a", (0, 2), 3)
    assert (found.is_again, found.said, found.is_readable) == (True, ("1", "a"), True)


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        (None, PAYLOAD),
        (HEADERS, None),
        (HEADERS, b"\xff"),
        (HEADERS, {}),
        *(({**HEADERS, name: None}, PAYLOAD) for name in ("postroom-epoch",)),
        *(({k: v for k, v in HEADERS.items() if k != name}, PAYLOAD) for name in ("postroom-id", "postroom-epoch")),
    ],
)
def test_what_cannot_be_understood_is_written_down_all_the_same(headers: Any, payload: Any) -> None:
    assert not arrival(headers, payload).is_readable


def test_what_was_written_down_is_read_again(tmp_path: Path) -> None:
    arrivals = [arrival(HEADERS, PAYLOAD), arrival(None, None)]
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(each) + "\n" for each in arrivals) + "[1, 2")
    assert read_log(log) == arrivals


@pytest.mark.parametrize(
    ("error", "is_forgiven"),
    [
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.UniqueViolation(), False),
        (pymysql.err.InterfaceError(), True),
        (pymysql.err.ProgrammingError(), False),
        (sqlite3.OperationalError(), True),
        (exc.OperationalError("", None, Exception()), True),
        (exc.IntegrityError("", None, Exception()), False),
        (ConnectionResetError(), True),
        (NoTransactionError("no"), False),
        (AttributeError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_writers_begin_again_after_errors_of_the_database_alone(error: Exception, is_forgiven: bool) -> None:
    assert is_of_the_database(error) == is_forgiven
