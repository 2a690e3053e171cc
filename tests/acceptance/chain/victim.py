"""The service of examples/chain, which is killed at a step of its handler, or of its relay."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from postroom import Outbox, Relay
from postroom.publishers.amqp import AmqpPublisher
from postroom.relay.wiring import store_for
from postroom.testing.faults import Faults

SERVICE = Path(__file__).parents[3] / "examples" / "chain" / "invoicing.py"
STEPS = (str(SERVICE), "/postroom/inbox/", "/postroom/connections/", "/sqlalchemy/orm/session.py")
"""Files whose every line is a step."""


@dataclass(frozen=True)
class Orders:
    database: str
    brokers: str
    destination: str
    topic: str
    idle: float
    line: int | None = None
    """Die before this step of the handler, counted from its first record."""
    moment: int | None = None
    """Die at this moment of the relay."""


def main(orders: Orders) -> None:
    service = load()
    service.Relay = lambda store, destination, outbox: faulty(Faults(at=orders.moment), store, destination, outbox)
    if orders.line is not None:
        service.records = traced(service.records, orders.line)
    service.main(orders.database, orders.brokers, orders.destination, orders.topic, orders.idle)


def load() -> Any:
    spec = importlib.util.spec_from_file_location("invoicing", SERVICE)
    assert spec is not None
    assert spec.loader is not None
    service = importlib.util.module_from_spec(spec)
    sys.modules["invoicing"] = service
    spec.loader.exec_module(service)
    return service


def faulty(faults: Faults, store: str, destination: str, outbox: Outbox) -> Relay:
    publisher = faults.publisher(AmqpPublisher(destination))
    return Relay(faults.store(store_for(store, outbox)), publisher, outbox=outbox, lease_ttl="1s")


def traced(records: Any, last: int) -> Any:
    """Count lines from the first record on."""
    left = last

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(STEPS[0]) and not any(
            part in frame.f_code.co_filename for part in STEPS[1:]
        ):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    def trace_records(*arguments: Any) -> Any:
        for record in records(*arguments):
            frame: FrameType | None = sys._getframe().f_back
            if sys.gettrace() is None:
                sys.settrace(count)
                while frame is not None:
                    frame.f_trace = count
                    frame = frame.f_back
            yield record

    return trace_records
