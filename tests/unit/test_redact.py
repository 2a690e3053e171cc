import doctest
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import redact as module
from postroom.redact import redact


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+asyncpg://shop:s3cret@db:5432/shop", "postgresql+asyncpg://shop:***@db:5432/shop"),
        ("redis://:s3cret@cache/0", "redis://:***@cache/0"),
        ("amqp://shop:p@ss@broker/vhost", "amqp://shop:***@broker/vhost"),
        ("mysql://shop:sla/sh@db/shop", "mysql://shop:***@db/shop"),
        ("mysql://shop:what?#@db/shop", "mysql://shop:***@db/shop"),
        ("mysql://shop:a@b/c@db/shop?x=1", "mysql://shop:***@db/shop?x=1"),
        ("nats://s3cret@broker:4222", "nats://***@broker:4222"),
        ("https://s3cret@hooks.example/x", "https://***@hooks.example/x"),
        ("https://hooks.example/x?token=abc&page=2", "https://hooks.example/x?token=***&page=2"),
        (
            "kafka://b:9092?sasl.password=abc&sasl.mechanism=PLAIN",
            "kafka://b:9092?sasl.password=***&sasl.mechanism=PLAIN",
        ),
        ("sqs://queue?aws_secret_access_key=abc#top", "sqs://queue?aws_secret_access_key=***#top"),
        ("https://hooks.example/x#secret=abc&concurrency=8", "https://hooks.example/x#secret=***&concurrency=8"),
        ("https://hooks.example/x?a=1#page=2&secret=abc", "https://hooks.example/x?a=1#page=2&secret=***"),
        ("https://hooks.example/x#secret=whsec_ab+c/= whsec_de", "https://hooks.example/x#secret=*** whsec_***"),
        ("cannot sign with whsec_ab+c/=: too short", "cannot sign with whsec_***: too short"),
        ("host=db password='with space' dbname=shop", "host=db password=*** dbname=shop"),
        ("cannot reach amqp://shop:s3cret@broker: refused", "cannot reach amqp://shop:***@broker: refused"),
    ],
)
def test_secrets_in_urls_are_hidden(url: str, shown: str):
    assert redact(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///shop.db",
        "sqlite:////var/lib/a:b@c.db",
        "postgresql://shop@db/shop",
        "kafka://one:9092,two:9092?linger.ms=5",
        "amqp://broker/vhost?routing_key=orders",
        "stdout:",
        "memory:",
        "",
        "not a url at all",
    ],
)
def test_what_holds_no_secret_stays_as_it_is(url: str):
    assert redact(url) == url


def could_be_a_password(text: str) -> bool:
    """An unescaped @ is what people forget; one with a ? or # behind it is a password to no parser of URLs."""
    return not re.search(r"\s|@.*[?#]", text)


@given(st.text(min_size=1, max_size=30).filter(could_be_a_password))
def test_no_part_of_a_password_is_ever_shown(password: str):
    assert redact(f"scheme://user:{password}@host.example/path") == "scheme://user:***@host.example/path"


@given(st.text(alphabet=string.printable, max_size=80))
def test_any_text_can_be_redacted_and_redacting_twice_changes_nothing(text: str):
    once = redact(text)
    assert redact(once) == once


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0
