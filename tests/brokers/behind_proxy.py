"""The contract suite's destination, for brokers: a real one, behind a network that fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import server_url
from tests.proxy import Proxy


class BehindProxy:
    broker: str
    """Its name among the services."""

    @pytest.fixture(autouse=True)
    def _network(self) -> Iterator[None]:
        self.address = server_url(self.broker)
        with Proxy(self.address) as proxy:
            self.proxy = proxy
            yield

    async def break_destination(self) -> None:
        self.proxy.shut()

    async def hang_destination(self) -> None:
        self.proxy.freeze()

    async def mend_destination(self) -> None:
        self.proxy.heal()
