"""What every store must do: `ports.Store`, sentence by sentence. Run it on yours:

    class TestMyStore(StoreContract):
        async def make_store(self, clock):
            return MyStore(url, clock=clock)

        async def make_another(self, store, clock):
            return MyStore(url, clock=clock)

        async def insert(self, store, messages): ...

        async def remove(self, store, message): ...

The database's time is the clock given to the store, so nothing sleeps. pytest and pytest-asyncio are needed.
"""

from __future__ import annotations

import pytest

from .breakers import BreakerContract
from .clean import CleanContract
from .desk import DeskContract
from .due import DueContract
from .fencing import FencingContract
from .fetch import FetchContract, GlanceContract
from .leases import LeaseContract
from .opening import OpeningContract
from .parking import ParkingContract
from .reader import ReaderContract
from .settle import SettleContract
from .wakeup import WakeupContract


@pytest.mark.asyncio
class StoreContract(
    OpeningContract,
    LeaseContract,
    FetchContract,
    ParkingContract,
    SettleContract,
    FencingContract,
    DueContract,
    BreakerContract,
    CleanContract,
    DeskContract,
    ReaderContract,
    WakeupContract,
    GlanceContract,
):
    """The whole suite: inherit from it, under a name that begins with Test."""
