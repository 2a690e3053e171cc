"""Large messages are read a few at a time, and a read that failed is tried again with fewer rows."""

from __future__ import annotations

from postroom import Message
from postroom.relay.appetite import BYTES, DEEP, FIRST_GUESS, Appetite

MEGABYTE = 1024 * 1024


def messages(size: int, count: int = 2) -> list[Message]:
    return [Message(topic="t", payload=bytes(size)) for _ in range(count)]


def test_small_messages_are_read_by_the_batch() -> None:
    appetite = Appetite(100)
    appetite.took(messages(200))
    assert (appetite.rows(), appetite.rows(DEEP), appetite.window) == (100, 200, 200)


def test_of_large_messages_so_many_are_read_as_are_no_burden() -> None:
    appetite = Appetite(500)
    appetite.took(messages(MEGABYTE))
    assert appetite.rows() == appetite.rows(DEEP) == BYTES // MEGABYTE
    assert appetite.window == 2 * BYTES // MEGABYTE


def test_one_that_is_larger_than_all_that_should_be_read_at_once_is_read_alone() -> None:
    appetite = Appetite(500)
    appetite.took(messages(BYTES + 1, count=1))
    assert appetite.rows() == 1


def test_before_any_was_seen_few_are_read_and_the_first_that_are_seen_count_at_once() -> None:
    appetite = Appetite(500)
    assert appetite.rows() == BYTES // FIRST_GUESS
    appetite.took(messages(200))
    assert appetite.rows() == 500
    other = Appetite(500)
    other.took(messages(MEGABYTE))
    assert other.rows() == BYTES // MEGABYTE


def test_when_they_are_small_again_they_are_read_by_the_batch_again() -> None:
    appetite = Appetite(100)
    appetite.took(messages(MEGABYTE))
    for _ in range(10):
        appetite.took(messages(200))
    assert appetite.rows() == 100


def test_what_could_not_be_read_is_halved_until_it_can_and_then_doubled() -> None:
    appetite = Appetite(100)
    appetite.took(messages(200))
    appetite.failed(appetite.rows())
    assert appetite.rows() == 50
    appetite.failed(1)
    assert appetite.rows() == 1
    sizes: list[int] = []
    while (size := appetite.rows()) < 100:
        sizes.append(size)
        appetite.took([])
    assert sizes == [2**power for power in range(7)]
