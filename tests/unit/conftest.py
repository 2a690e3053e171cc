import pytest

from tests.unit.relay_shop import Shop


@pytest.fixture
def shop() -> Shop:
    return Shop()
