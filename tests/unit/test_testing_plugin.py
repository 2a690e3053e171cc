"""The fixtures, as pytest finds them by itself in a project of a user's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SHOP = """
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session
    from postroom import Outbox

    outbox = Outbox()

    def place_order(session, id):
        outbox.add(session, "orders", {"id": id}, key=f"order-{id}", type="OrderPlaced")
        outbox.add(session, "mail.reminders", {"order": id}, delay="1d")
"""

CONFTEST = """
    import pytest
    import shop

    @pytest.fixture
    def engine(tmp_path):
        engine = shop.create_engine(f"sqlite:///{tmp_path}/shop.db")
        yield engine
        engine.dispose()

    @pytest.fixture
    def postroom_outbox():
        return shop.outbox

    @pytest.fixture
    def postroom_store(engine):
        return engine

    @pytest.fixture
    def postroom_settings():
        return {"retry": "never"}
"""


class Project:
    """A user's project, with nothing in it but what a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(dedent(text), encoding="utf-8")

    def run(self, *options: str) -> tuple[int, str]:
        command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=100)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_fixtures_are_there_and_described(project: Project) -> None:
    project.write(test_nothing="def test_nothing(): ...")
    status, printed = project.run("--fixtures")
    assert status == 0, printed
    for name in ("postroom", "postroom_outbox", "postroom_store", "postroom_settings", "no_direct_publish"):
        description = printed.split(f"\n{name} --", 1)[1].split("\n")[1]
        assert description.strip()
        assert "no docstring" not in description


def test_in_memory_with_no_set_up_at_all(project: Project) -> None:
    project.write(
        test_memory="""
        def test_delivery(postroom):
            with postroom.transaction() as transaction:
                postroom.outbox.add(transaction, "orders", {"id": 1}, key="order-1")
            postroom.assert_added(topic="orders", payload={"id": 1})
            assert postroom.drain().delivered == 1
            assert [message.json() for message in postroom.published(topic="ord*")] == [{"id": 1}]

        def test_every_test_has_its_own(postroom):
            postroom.assert_not_added()
            assert postroom.published() == []
        """
    )
    status, printed = project.run()
    assert status == 0, printed
    assert "2 passed" in printed


def test_the_applications_own_outbox_and_engine(project: Project) -> None:
    project.write(
        shop=SHOP,
        conftest=CONFTEST,
        test_shop="""
        import shop

        def test_an_order(postroom, engine):
            with shop.Session(engine) as session, session.begin():
                shop.place_order(session, 1)
            postroom.assert_added(type="OrderPlaced", key="order-1", count=1)
            assert postroom.drain().delivered == 1
            postroom.travel("1d")
            assert postroom.drain().delivered == 1
            assert [message.topic for message in postroom.published()] == ["orders", "mail.reminders"]

        def test_a_refusal(postroom, engine):
            with shop.Session(engine) as session, session.begin():
                shop.place_order(session, 2)
            postroom.fail_next(topic="orders")
            assert postroom.drain().dead == 1

        def test_a_rollback(postroom, engine):
            with shop.Session(engine) as session:
                shop.place_order(session, 3)
            postroom.assert_not_added()
        """,
    )
    status, printed = project.run()
    assert status == 0, printed
    assert "3 passed" in printed


def test_async_tests_await_the_drain(project: Project) -> None:
    project.write(
        test_async="""
        import pytest

        @pytest.mark.asyncio
        async def test_delivery(postroom):
            with postroom.transaction() as transaction:
                postroom.outbox.add(transaction, "orders", {"id": 1})
            postroom.assert_added(topic="orders")
            assert (await postroom.drain_async()).delivered == 1
        """
    )
    status, printed = project.run()
    assert status == 0, printed


def test_a_failing_test_shows_what_was_added_and_no_line_of_ours(project: Project) -> None:
    project.write(
        shop=SHOP,
        conftest=CONFTEST,
        test_shop="""
        import shop

        def test_an_order(postroom, engine):
            with shop.Session(engine) as session, session.begin():
                shop.place_order(session, 1)
            postroom.assert_added(type="OrderPaid")
        """,
    )
    status, printed = project.run()
    assert status == 1
    assert "AssertionError: no message with type='OrderPaid' was added; what was added:" in printed
    assert '  pending  orders          order-1  OrderPlaced  {"id":1}' in printed
    assert '  later    mail.reminders  -        -            {"order":1}' in printed
    assert "kit.py" not in printed


def test_a_direct_publish_fails_the_test_and_names_the_call(project: Project) -> None:
    project.write(
        test_guard="""
        import httpx

        def notify():
            httpx.post("https://hooks.example.com/orders?token=secret", json={})

        def test_notify(no_direct_publish):
            notify()

        def test_swallowed(no_direct_publish):
            try:
                notify()
            except Exception:
                pass

        def test_expected(no_direct_publish):
            try:
                notify()
            except AssertionError:
                no_direct_publish.calls.clear()

        def test_nothing_is_sent(no_direct_publish):
            pass
        """
    )
    status, printed = project.run()
    assert status == 1
    assert "1 failed, 3 passed, 1 error" in printed
    assert "httpx POST https://hooks.example.com/orders sends past the outbox" in printed
    assert "use outbox.add(session, …)" in printed
    assert "the application caught the error, but it sent past the outbox: httpx POST" in printed
    assert "secret" not in printed.replace("token=secret", "")


def test_loading_the_plugin_loads_no_kit_and_no_relay_suite() -> None:
    code = (
        "import sys, postroom.testing.plugin; print(*(name for name in sys.modules if name.startswith('postroom.t')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("postroom.testing")}
    assert loaded == {"postroom.testing", "postroom.testing.clock", "postroom.testing.plugin"}


def test_the_library_itself_does_not_load_pytest() -> None:
    code = "import sys, postroom, postroom.testing.kit, postroom.testing.survival; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
