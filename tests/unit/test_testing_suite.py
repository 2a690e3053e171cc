"""The suites for adapters: whoever forgets a method is told, and has not passed."""

from __future__ import annotations

import pytest

from postroom.testing.publisher_contract import DeliveryContract, TimeoutContract
from postroom.testing.store_contract import StoreContract


@pytest.mark.parametrize(
    ("suite", "missing"),
    [
        (DeliveryContract, "make_publisher, received"),
        (TimeoutContract, "hang_destination, make_publisher, mend_destination, received"),
        (StoreContract, "insert, make_another, make_store, remove"),
    ],
)
def test_a_suite_that_lacks_a_method_is_an_error(suite: type, missing: str) -> None:
    with pytest.raises(TypeError, match=f"TestMine must define {missing}: else none of its tests would be run"):
        type("TestMine", (suite,), {})
