import doctest
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import routing
from postroom.errors import ConfigurationError
from postroom.routing import REMEMBERED_TOPICS, Globs, PerTopic, Routes, kebab, topic_for


def test_the_first_route_that_matches_wins():
    routes = Routes({"orders.*": "kafka:", "orders.eu.*": "amqp:", "*": "stdout:"})
    assert routes.match("orders.eu.placed") == "orders.*"
    assert routes.target_for("orders.eu.placed") == "kafka:"
    assert routes.target_for("mail") == "stdout:"


def test_a_topic_without_a_route_matches_nothing():
    routes = Routes({"orders": "kafka:"})
    assert routes.match("mail") is None
    assert routes.target_for("mail") is None


def test_routes_are_case_sensitive_and_match_the_whole_topic():
    routes = Routes({"orders": "kafka:"})
    assert [routes.match(topic) for topic in ("Orders", "orders.eu", "my.orders", "orders\n")] == [None] * 4


def test_one_target_alone_takes_everything():
    assert Routes("stdout:").target_for("anything") == "stdout:"
    assert Routes(print).target_for("anything") is print


def test_changing_the_mapping_afterwards_changes_no_route():
    mapping = {"*": "stdout:"}
    routes = Routes(mapping)
    mapping.clear()
    assert routes.target_for("orders") == "stdout:"


def test_routes_that_can_never_match_are_known():
    routes = Routes({"orders.*": 1, "orders.eu": 2, "mail": 3, "*": 4, "late": 5, "mail.*": 6})
    assert routes.shadowed() == ["orders.eu", "late", "mail.*"]


@pytest.mark.parametrize("mapping", [{}, {"": "stdout:"}, {7: "stdout:"}])
def test_routes_that_are_none_are_refused(mapping: dict[str, str]):
    with pytest.raises(ConfigurationError):
        Routes(mapping)


def test_a_route_does_not_show_its_url():
    assert repr(Routes({"mail": "amqp://shop:s3cret@broker"})) == "Routes(mail)"


def test_more_topics_than_are_remembered_still_find_their_way():
    globs = Globs(["orders.*"])
    names = [f"orders.{number}" for number in range(REMEMBERED_TOPICS + 10)]
    assert all(name in globs for name in names)
    assert all(name in globs for name in names)


def test_no_globs_match_nothing():
    assert "orders" not in Globs()
    assert not Globs()


@given(st.lists(st.text(alphabet="ab*?[]!.", min_size=1), max_size=5), st.text(alphabet="ab."))
def test_a_match_is_always_one_of_the_patterns(patterns: list[str], name: str):
    globs = Globs(patterns)
    assert globs.match(name) in {None, *patterns}
    assert (name in globs) == (globs.match(name) is not None)


def test_globs_are_equal_by_pattern_and_survive_pickling():
    assert Globs(["a", "b"]) == Globs(["a", "b"]) != Globs(["b", "a"])
    assert pickle.loads(pickle.dumps(Globs(["a.*"]))).match("a.b") == "a.*"
    assert pickle.loads(pickle.dumps(PerTopic(1, {"a.*": 2}))).value_for("a.b") == 2


def test_one_value_applies_to_every_message():
    assert PerTopic("block").value_for("orders", "OrderPlaced") == "block"


def test_the_type_is_looked_up_before_the_topic():
    value = PerTopic(0, {"orders": 1, "OrderPlaced": 2})
    assert value.value_for("orders", "OrderPlaced") == 2
    assert value.value_for("orders", "OrderPaid") == 1
    assert value.value_for("orders") == 1
    assert value.value_for("mail", "Welcome") == 0


def test_the_star_applies_last_wherever_it_stands():
    value = PerTopic(0, {"*": 9, "orders": 1})
    assert value.value_for("orders", "OrderPlaced") == 1
    assert value.value_for("mail", "Welcome") == 9


def test_every_value_that_may_apply_is_known():
    assert PerTopic("block", {"mail": "continue"}).possible() == ["continue", "block"]


def test_a_topic_is_derived_from_aggregate_and_event():
    assert topic_for("Order", "OrderPlaced") == "order.order-placed"
    assert topic_for("order_line", "Added") == "order-line.added"


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        ("{aggregate}.{action}", "order.placed"),
        ("outbox.event.{aggregate}", "outbox.event.order"),
        ("{aggregate_type}.{event_type}", "Order.OrderPlaced"),
    ],
)
def test_a_template_decides_how_a_topic_looks(template: str, topic: str):
    assert topic_for("Order", "OrderPlaced", template) == topic


def test_only_whole_words_of_the_aggregate_are_dropped_from_the_action():
    assert topic_for("Order", "OrderedAgain", "{aggregate}.{action}") == "order.ordered-again"
    assert topic_for("Order", "Order", "{aggregate}.{action}") == "order.order"


@pytest.mark.parametrize("template", ["{aggregat}", "{", "{0}", "{aggregate.nothing}"])
def test_a_template_that_cannot_be_filled_in_is_refused(template: str):
    with pytest.raises(ConfigurationError, match="topic template"):
        topic_for("Order", "OrderPlaced", template)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OrderPlaced", "order-placed"),
        ("order_placed", "order-placed"),
        ("Order placed!", "order-placed"),
        ("HTTPRequestSent", "http-request-sent"),
        ("OrderV2Placed", "order-v2-placed"),
        ("shop.OrderPlaced", "shop.order-placed"),
        ("__private__", "private"),
        ("Straße", "straße"),
    ],
)
def test_names_become_kebab_case(name: str, expected: str):
    assert kebab(name) == expected


@pytest.mark.parametrize("name", ["", "  ", "...", "-_-"])
def test_a_name_without_letters_is_refused(name: str):
    with pytest.raises(ConfigurationError):
        topic_for("Order", name)


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Nd"]), min_size=1))
def test_kebab_case_stays_as_it_is(name: str):
    assert kebab(kebab(name)) == kebab(name)


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(routing).attempted > 0
    assert doctest.testmod(routing).failed == 0
