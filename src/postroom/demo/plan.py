"""What happens in the demo, drawn from the seed alone: the same in every process, and again tomorrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

CUSTOMERS = 250
PRODUCTS = 40
WRITERS = 3
ORDERS_PER_WRITER = 150
SECONDS_OF_WRITING = 8.0

SOLD_OUT_SHARE = 0.08
GIFT_SHARE = 0.25
GIFT_SOLD_OUT_SHARE = 0.4

CONTINUED_TOPICS = ("mail",)
"""A dead message of these does not hold up those behind it."""

Gift = Literal["none", "wrapped", "sold out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLine:
    product: str
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOrder:
    reference: str
    customer: str
    at: float
    """Seconds after the start."""
    lines: tuple[PlannedLine, ...]
    sold_out: bool
    """Found out at the end: the whole transaction is rolled back."""
    gift: Gift
    """A gift is a savepoint of its own; sold out, it is rolled back and the order goes on without it."""

    @property
    def messages(self) -> int:
        """How many of its messages are committed."""
        if self.sold_out:
            return 0
        return 1 + len(self.lines) + 2 * (self.gift == "wrapped") + 1 + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How the destination treats a message that it does not like."""

    reason: str
    times: int | None
    """None: for good."""
    permanent: bool = False
    """It says at once that no retry can help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    writers: tuple[tuple[PlannedOrder, ...], ...]
    refusals: Mapping[tuple[str, str], Refusal]
    """By the message's type and its order."""
    outage_at: float
    outage_seconds: float
    crashing_writer: int
    crash_at: int
    """The order that this writer is killed in."""
    kill_after: int
    """A relay is killed when it has delivered this many messages after the outage."""

    @property
    def orders(self) -> Iterator[PlannedOrder]:
        for orders in self.writers:
            yield from orders

    @property
    def messages(self) -> int:
        return sum(order.messages for order in self.orders)

    @property
    def deliverable(self) -> int:
        """Of the messages, those that the destination will take."""
        return self.messages - sum(refusal.times is None for refusal in self.refusals.values())


def customer_name(number: int) -> str:
    return f"customer-{number:03}"


def product_name(number: int) -> str:
    return f"product-{number:02}"


def draw(seed: int) -> Plan:
    random = Random(seed)
    writers = tuple(tuple(_orders(random, writer)) for writer in range(1, WRITERS + 1))
    crashing_writer = random.randrange(WRITERS)
    return Plan(
        seed=seed,
        writers=writers,
        refusals=_refusals(random, [order for orders in writers for order in orders]),
        outage_at=random.uniform(1.8, 2.6),
        outage_seconds=random.uniform(2.2, 3.0),
        crashing_writer=crashing_writer,
        crash_at=_crash(random, writers[crashing_writer]),
        kill_after=random.randint(60, 160),
    )


def _crash(random: Random, orders: Sequence[PlannedOrder]) -> int:
    """Late, and in an order that would have been committed."""
    late = range(len(orders) * 7 // 10, len(orders) * 8 // 10)
    return random.choice([number for number in late if not orders[number].sold_out])


def _orders(random: Random, writer: int) -> Iterator[PlannedOrder]:
    step = SECONDS_OF_WRITING / ORDERS_PER_WRITER
    for number in range(ORDERS_PER_WRITER):
        yield PlannedOrder(
            reference=f"order-{writer}{number:03}",
            customer=customer_name(random.randrange(CUSTOMERS)),
            at=step * (number + random.random()),
            lines=tuple(_line(random) for _ in range(random.choice((1, 1, 2, 2, 3, 4)))),
            sold_out=random.random() < SOLD_OUT_SHARE,
            gift=_gift(random),
        )


def _line(random: Random) -> PlannedLine:
    return PlannedLine(product=product_name(random.randrange(PRODUCTS)), quantity=random.randint(1, 3))


def _gift(random: Random) -> Gift:
    if random.random() >= GIFT_SHARE:
        return "none"
    return "sold out" if random.random() < GIFT_SOLD_OUT_SHARE else "wrapped"


def _refusals(random: Random, orders: list[PlannedOrder]) -> dict[tuple[str, str], Refusal]:
    """A label is the last message of its key: `postroom holds` shows it, and nobody has to wait behind it."""
    unknown = Refusal(reason="550 no such mailbox", times=None, permanent=True)
    full = Refusal(reason="452 mailbox full", times=None)
    no_carrier = Refusal(reason="no carrier goes to this address", times=None, permanent=True)
    stumble = Refusal(reason="a hiccup; it works the third time", times=2)
    wanted = [
        *[("ConfirmationRequested", unknown)] * 4,
        *[("ConfirmationRequested", full)] * 2,
        ("ParcelLabelled", no_carrier),
        ("OrderPlaced", stumble),
        ("OrderPaid", stumble),
    ]
    committed = [order.reference for order in orders if not order.sold_out]
    chosen = random.sample(committed, len(wanted))
    return {(type, order): refusal for (type, refusal), order in zip(wanted, chosen, strict=True)}
