from __future__ import annotations

import asyncio
import time

import pytest

from postroom.stores import limits
from postroom.stores.limits import limited

GRACE = 0.05


class StubbornDriver:
    """Cancelled, it ends its transaction first, for which it needs an answer, or to know that there will be none."""

    def __init__(self, frozen: float = 0) -> None:
        self.frozen = frozen
        self.hung_up = asyncio.Event()
        self.is_done = False

    async def work(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            time.sleep(self.frozen)
            await self.hung_up.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            self.is_done = True


@pytest.fixture(autouse=True)
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE", GRACE)


@pytest.mark.parametrize("frozen", [0, 3 * GRACE])
async def test_who_does_not_stop_is_hung_up_on_and_has_time_to_end(frozen: float) -> None:
    driver = StubbornDriver(frozen)
    with pytest.raises(TimeoutError):
        await limited(driver.work(), GRACE, driver.hung_up.set)
    assert driver.is_done


@pytest.mark.parametrize("again", [1, 2, 3])
async def test_who_is_cancelled_again_and_again_still_hangs_up(again: int) -> None:
    driver = StubbornDriver()
    task = asyncio.ensure_future(limited(driver.work(), 60, driver.hung_up.set))
    for _ in range(again):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert driver.hung_up.is_set()


async def test_work_that_ends_in_time_has_its_result() -> None:
    assert await limited(asyncio.sleep(0, "done"), 60, lambda: None) == "done"
