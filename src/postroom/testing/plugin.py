"""The pytest plugin: fixtures for applications that use Postroom. pytest finds it by its entry point.

To test your own outbox, say in conftest.py which it is and where:

    @pytest.fixture
    def postroom_outbox():
        return shop.outbox

    @pytest.fixture
    def postroom_store(engine):
        return engine
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..outbox import Outbox
    from .guard import Guard
    from .kit import PostroomKit
    from .stores import Place


@pytest.fixture
def postroom_outbox() -> Outbox:
    """The outbox under test; override it with the application's own."""
    from ..outbox import Outbox

    return Outbox()


@pytest.fixture
def postroom_store() -> Place:
    """Where that outbox is: an engine, a URL or a store. Override it, unless memory will do."""
    return "memory:"


@pytest.fixture
def postroom_settings() -> Mapping[str, Any]:
    """Settings of the relay that delivers in tests, such as `{"retry": "1s, 5s"}`."""
    return {}


@pytest.fixture
def postroom(
    postroom_outbox: Outbox, postroom_store: Place, postroom_settings: Mapping[str, Any]
) -> Generator[PostroomKit]:
    """A `PostroomKit`: drain, published, assert_added, travel, fail_next, destination_down."""
    from .kit import PostroomKit

    with PostroomKit(postroom_outbox, postroom_store, **postroom_settings) as kit:
        yield kit


@pytest.fixture
def no_direct_publish(request: pytest.FixtureRequest) -> Generator[Guard]:
    """Sending past the outbox fails the test: a broker's client, or an HTTP request that changes something."""
    from .guard import forbid_direct_publish

    session, before = request.session, request.session.testsfailed
    with forbid_direct_publish() as guard:
        yield guard
    if guard.calls and session.testsfailed == before:
        pytest.fail(f"the application caught the error, but it sent past the outbox: {', '.join(guard.calls)}")
