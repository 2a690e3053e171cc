from collections.abc import Iterator

import pytest

from tests.brokers.http_server import HttpServer, SecureServer


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server


@pytest.fixture
def secure() -> Iterator[SecureServer]:
    with SecureServer() as server:
        yield server
