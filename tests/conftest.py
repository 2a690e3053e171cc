"""What holds for every test: how properties are explored, the servers, and that no skipped test goes unnoticed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import services

ON_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
SERVERS_USED = pytest.StashKey[dict[str, str]]()

Database = Callable[[str], str]

# Machines are slow at times; that is no property of the code. On CI a commit always gets the same answer.
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("ci" if ON_CI else "explore")


def server_url(name: str) -> str:
    try:
        return services.url(name)
    except services.ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgresql_15() -> str:
    return server_url("postgresql-15")


@pytest.fixture(scope="session")
def postgresql_18() -> str:
    return server_url("postgresql-18")


@pytest.fixture(scope="session")
def mariadb() -> str:
    return server_url("mariadb")


@pytest.fixture(scope="session")
def pgbouncer() -> str:
    return server_url("pgbouncer")


@pytest.fixture(scope="session")
def database_of_this_worker() -> Iterator[Database]:
    databases: dict[str, str] = {}
    with ExitStack() as stack:

        def database(name: str) -> str:
            server_url(name)
            if name not in databases:
                databases[name] = stack.enter_context(services.fresh_database(name))
            return databases[name]

        yield database


@pytest.fixture
def empty_database(database_of_this_worker: Database) -> Database:
    """Call it with a server's name for the URL of an empty database: always the same one, emptied by each call."""

    def database(name: str) -> str:
        url = database_of_this_worker(name)
        services.empty(name, url)
        return url

    return database


@pytest.fixture
def fresh_database() -> Iterator[Database]:
    """Call it with a server's name for the URL of a database of its own, which takes longer than an emptied one."""
    with ExitStack() as stack:

        def database(name: str) -> str:
            server_url(name)
            return stack.enter_context(services.fresh_database(name))

        yield database


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS_USED] = {}
    if not is_worker(config):  # the workers' servers are the run's
        stack = ExitStack()
        stack.enter_context(services.in_use())
        config.add_cleanup(stack.close)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[SERVERS_USED] |= getattr(node, "workeroutput", {}).get("servers", {})


def skipped_tests(config: pytest.Config) -> list[pytest.TestReport]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    return terminal.stats.get("skipped", []) if terminal else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[SERVERS_USED] |= services.used()
    if is_worker(session.config):
        session.config.workeroutput["servers"] = services.used()  # pyright: ignore[reportAttributeAccessIssue]
    if ON_CI and session.exitstatus == pytest.ExitCode.OK and skipped_tests(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if servers := config.stash[SERVERS_USED]:
        used = [servers[name] for name in services.NAMES if name in servers]
        terminalreporter.section(f"servers: {', '.join(used)}")
    tell_faults(terminalreporter)
    summarise_skipped(terminalreporter, skipped_tests(config))


def tell_faults(terminalreporter: pytest.TerminalReporter) -> None:
    """What came of the faults, test by test."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    told = [(report.nodeid, value) for report in reports for name, value in report.user_properties if name == "faults"]
    if told:
        terminalreporter.section("faults")
    for nodeid, value in sorted(told):
        terminalreporter.line(f"{value} ({nodeid.rpartition('::test_')[2]})")


def summarise_skipped(terminalreporter: pytest.TerminalReporter, skipped: list[pytest.TestReport]) -> None:
    if not skipped:
        return
    verdict = "and CI allows none: this run fails" if ON_CI else "so this run does not prove them"
    terminalreporter.section(f"{len(skipped)} NOT RUN, {verdict}", sep="!", red=True, bold=True)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.line(f"{report.nodeid}: {reason}", red=True)
