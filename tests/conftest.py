"""What holds for every test: how properties are explored, and that no skipped test goes unnoticed."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

ON_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

# Machines are slow at times; that is no property of the code. On CI a commit always gets the same answer.
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("ci" if ON_CI else "explore")


def skipped_tests(config: pytest.Config) -> list[pytest.TestReport]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    return terminal.stats.get("skipped", []) if terminal else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if ON_CI and session.exitstatus == pytest.ExitCode.OK and skipped_tests(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = skipped_tests(config)
    if not skipped:
        return
    verdict = "and CI allows none: this run fails" if ON_CI else "so this run does not prove them"
    terminalreporter.section(f"{len(skipped)} NOT RUN, {verdict}", sep="!", red=True, bold=True)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.line(f"{report.nodeid}: {reason}", red=True)
