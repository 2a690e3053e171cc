"""Whether destinations will take what is routed to them, found out without sending anything."""

from __future__ import annotations

from collections.abc import Iterable

from ..failures import describe
from ..ports import Examinable, Finding
from ..routing import Routes
from .wiring import Target

WILDCARDS = frozenset("*?[")


async def examine(routes: Routes[Target], topics: Iterable[str]) -> list[Finding]:
    """What there is to say of each destination, asked about those of the topics that go there, and about those that a
    route names in full; and of topics that go nowhere."""
    asked = {*topics, *(glob for glob in routes.targets if not WILDCARDS & set(glob))}
    by_target: dict[str, tuple[Target, list[str]]] = {target.name: (target, []) for target in routes.targets.values()}
    lost: list[str] = []
    for topic in sorted(asked):
        target = routes.target_for(topic)
        (lost if target is None else by_target[target.name][1]).append(topic)
    findings = [finding for target, of_target in by_target.values() for finding in await _ask(target, of_target)]
    if lost:
        findings.append(_lost(lost))
    return findings


async def _ask(target: Target, topics: list[str]) -> list[Finding]:
    publisher = target.make()
    try:
        if isinstance(publisher, Examinable):
            return await publisher.examine(topics)
        return [Finding(name="destination", verdict="ok", seen=f"{target.name}: it cannot be asked beforehand")]
    except Exception as error:
        seen = f"{target.name}: {describe(error)}"
        return [Finding(name="destination", verdict="problem", seen=seen, remedy="look whether it runs")]
    finally:
        if target.ours:
            await publisher.close()


def _lost(topics: list[str]) -> Finding:
    named = ", ".join(repr(topic) for topic in topics[:3])
    more = f" and {len(topics) - 3} more" if len(topics) > 3 else ""
    return Finding(
        name="routes",
        verdict="problem",
        seen=f"messages wait that no route takes: {named}{more}",
        remedy="add a route for them, or a publisher for everything else, and start the relay again",
    )
