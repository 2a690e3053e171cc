from __future__ import annotations

import pytest

from tests.tasks.workshop import Workshop


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()
