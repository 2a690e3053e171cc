"""The databases' own command line clients, as somebody without Python would use them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from sqlalchemy import URL, make_url

SERVERS = {"postgresql": "postgresql-15", "mysql": "mariadb"}
"""On which server the blocks marked `sql postgresql` and `sql mysql` are run."""

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


def run_sql(url: str, sql: str) -> list[list[str]]:
    """Run statements in one session, up to the first error; the rows that were printed."""
    parts = make_url(url)
    command = _psql(parts) if parts.get_backend_name() == "postgresql" else _mariadb(parts)
    done = subprocess.run(command, input=sql.encode(), capture_output=True, timeout=60)
    if done.returncode:
        raise SqlError(done.stderr.decode())
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


class SqlError(Exception):
    """What the client said when a statement failed."""


def _psql(url: URL) -> list[str]:
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    options = ["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--field-separator=\t"]
    return [_program("psql"), *options, "--set=ON_ERROR_STOP=1", "--file=-", address]


def _mariadb(url: URL) -> list[str]:
    options = [f"--host={url.host}", f"--port={url.port}", f"--user={url.username}", "--protocol=tcp", "--skip-ssl"]
    secret = [f"--password={url.password}"] if url.password else []
    return [
        _program("mariadb"),
        "--no-defaults",
        *options,
        *secret,
        "--batch",
        "--skip-column-names",
        str(url.database),
    ]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"the client {name} is not installed")
    return found
