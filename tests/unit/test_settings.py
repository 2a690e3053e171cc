import pickle
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.configuration import Configuration, load
from postroom.errors import ConfigurationError
from postroom.retry import ByType, Exponential, Fixed, Never, Steps
from postroom.routing import PerTopic
from postroom.serialize import JsonSerializer
from postroom.settings import LEASE_MARGIN, Settings, grace


def write(directory: Path, text: str, name: str = "postroom.toml") -> Path:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


def test_the_defaults_are_what_the_documentation_says():
    settings = Settings.of()
    assert settings == Settings()
    assert (settings.claim, settings.batch_size, settings.workers, settings.concurrency) == ("slots", 500, None, 32)
    assert (settings.poll_interval, settings.idle_interval, settings.lease_ttl) == (0.1, 1.0, 15.0)
    assert (settings.publish_timeout, settings.stop_timeout, settings.retry) == (7.5, 10.0, Steps())
    assert (settings.retention, settings.dedupe_window, settings.clean_interval) == (None, 604_800.0, 3600.0)
    assert (settings.clean_batch, settings.create_tables, settings.enabled) == (10_000, True, True)
    assert settings.max_rate is None
    assert (settings.breaker_initial, settings.breaker_cap, settings.trip_after) == (0.5, 15.0, 5)
    assert settings.cautions() == []


def test_every_setting_says_what_it_is_for():
    assert all(item.metadata["about"] for item in fields(Settings))


def test_durations_may_be_written_in_any_form():
    settings = Settings.of(lease_ttl=timedelta(seconds=30), poll_interval="50ms", retention="7d", stop_timeout=3)
    assert (settings.lease_ttl, settings.poll_interval) == (30.0, 0.05)
    assert (settings.retention, settings.stop_timeout) == (604_800.0, 3.0)


def test_none_means_unset():
    assert Settings.of(**{item.name: None for item in fields(Settings)}) == Settings()


def test_none_as_text_takes_a_value_back():
    assert Settings.of(retention="none", max_rate="none", workers="none") == Settings()


def test_what_depends_on_another_setting_follows_it():
    assert Settings.of(lease_ttl="1m").publish_timeout == 30.0
    assert Settings.of(poll_interval="5s").idle_interval == 5.0
    assert Settings.of(breaker_initial="2m").breaker_cap == 120.0


@given(st.floats(min_value=0.1, max_value=3600))
def test_by_default_a_publish_fits_into_what_is_left_of_a_lease_at_any_time(lease_ttl: float):
    settings = Settings.of(lease_ttl=lease_ttl)
    left_before_renewal = settings.lease_ttl - settings.renew_interval - settings.lease_margin
    slack = settings.lease_ttl / 40  # for the renewal itself
    assert settings.publish_timeout + grace(settings.publish_timeout) <= left_before_renewal - slack
    assert settings.publish_timeout >= settings.lease_ttl * 0.42


@pytest.mark.parametrize("lease_ttl", [0.1, 1, 2, 3, 7.5, 10, 15, 60, 3600])
def test_the_longest_time_out_is_accepted_as_the_refusal_spells_it_and_fits_with_its_grace(lease_ttl: float):
    with pytest.raises(ConfigurationError) as caught:
        Settings.of(lease_ttl=lease_ttl, publish_timeout=lease_ttl)
    longest = str(caught.value).partition("must be at most ")[2].partition(" ")[0]
    timeout = Settings.of(lease_ttl=lease_ttl, publish_timeout=longest).publish_timeout
    assert timeout + grace(timeout) == pytest.approx(lease_ttl * 2 / 3 - lease_ttl * LEASE_MARGIN, abs=0.001)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("claim", "row", "'slots' or 'leader' or 'rows'"),
        ("batch_size", 0, "at least 1"),
        ("batch_size", "many", "whole number"),
        ("batch_size", 1.5, "whole number"),
        ("batch_size", True, "whole number"),
        ("workers", -1, "whole number"),
        ("poll_interval", "1ms", "from 10ms to 10m"),
        ("poll_interval", "1h", "from 10ms to 10m"),
        ("lease_ttl", "soon", "is not a length of time"),
        ("lease_ttl", 0, "from 100ms"),
        ("clean_interval", 0, "at least 10ms"),
        ("retry", "sometimes", "there is no retry policy 'sometimes'"),
        ("on_dead", "stop", "'block' or 'continue'"),
        ("on_dead", {"mail": "stop"}, "'block' or 'continue'"),
        ("on_dead", {"": "block"}, "is no glob"),
        ("revive_after", {"mail": "x"}, "is not a length of time"),
        ("latest_only", "stock.*", "true or false"),
        ("latest_only", [["stock"]], "is no text"),
        ("latest_only", {"stock.*": 2}, "true or false"),
        ("create_tables", "maybe", "true or false"),
        ("max_rate", 0, "messages per second"),
        ("max_rate", "fast", "messages per second"),
        ("max_rate", float("nan"), "messages per second"),
        ("max_rate", 10**400, "messages per second"),
        ("max_rate", True, "messages per second"),
        ("trip_after", 0, "at least 1"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_setting(name: str, value: object, complaint: str):
    with pytest.raises(ConfigurationError) as caught:
        Settings.of(**{name: value})
    assert str(caught.value).startswith(name)
    assert complaint in str(caught.value)


def test_an_unknown_setting_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigurationError, match=r"^batchsize: there is no such setting; did you mean 'batch_size'\?"):
        Settings.of(batchsize=5)
    with pytest.raises(ConfigurationError, match=r"^xyzzy: there is no such setting; there are: batch_size, "):
        Settings.of(xyzzy=5)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match=r"publish_timeout \(12s\) must be at most 8s .* lease_ttl of 15s"):
        Settings.of(publish_timeout=12)
    with pytest.raises(ConfigurationError, match=r"breaker_initial \(10s\) must be at most breaker_cap \(1s\)"):
        Settings.of(breaker_initial=10, breaker_cap=1)


def test_a_dedupe_window_shorter_than_the_retries_is_cautioned_against():
    (caution,) = Settings.of(dedupe_window="1m").cautions()
    assert "dedupe_window (1m) is shorter than the retries may take (2m36s)" in caution
    assert Settings.of(dedupe_window="1m", retry="never").cautions() == []
    assert Settings.of(retry="fixed 1h max=forever").cautions() == []


def test_a_retention_that_cleaning_cannot_keep_is_cautioned_against():
    (caution,) = Settings.of(retention="10m").cautions()
    assert "retention (10m) is shorter than clean_interval (1h)" in caution


def test_a_dead_message_blocks_its_key_unless_told_otherwise_and_never_without_a_key():
    assert Settings.of().blocks("orders", None, "order-1")
    assert not Settings.of().blocks("orders", None, None)
    settings = Settings.of(on_dead={"mail.*": "continue", "Refunded": "continue"})
    assert not settings.blocks("mail.welcome", None, "user-1")
    assert not settings.blocks("orders", "Refunded", "order-1")
    assert settings.blocks("orders", "Placed", "order-1")


def test_values_per_type_or_topic_take_one_value_or_many():
    settings = Settings.of(revive_after={"mail": "1h", "orders": "none"}, latest_only=["stock.*"], on_dead="continue")
    assert settings.revive_after == PerTopic(None, {"mail": 3600.0, "orders": None})
    assert settings.latest_only == PerTopic(False, {"stock.*": True})
    assert settings.on_dead == PerTopic("continue")
    assert Settings.of(latest_only=True).latest_only.value_for("anything")
    assert Settings.of(revive_after="1h").revive_after.value_for("anything") == 3600.0


def test_settings_can_be_compared_hashed_and_pickled():
    settings = Settings.of(on_dead={"mail": "continue"}, retry={"mail": "never"})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(Settings.of(on_dead={"mail": "continue"}, retry={"mail": "never"}))


def test_without_any_source_the_defaults_apply(tmp_path: Path):
    assert load(environ={}, directory=tmp_path) == Configuration()


def test_a_file_in_the_directory_is_read(tmp_path: Path):
    file = write(
        tmp_path,
        """
        store = "sqlite:///shop.db"
        name = "shop"
        prefix = "shop_"
        serializer = "json"
        batch_size = 50
        lease_ttl = "30s"
        on_dead = { "mail.*" = "continue" }
        latest_only = ["stock.*"]

        [routes]
        "orders.*" = "kafka://localhost"
        "*" = "stdout:"

        [retry]
        "mail.*" = "fixed 10s"
        "*" = { policy = "exponential", max = 3 }
        """,
    )
    found = load(environ={}, directory=tmp_path)
    assert (found.store, found.name, found.prefix, found.schema) == ("sqlite:///shop.db", "shop", "shop_", None)
    assert isinstance(found.serializer, JsonSerializer)
    assert found.file == file
    assert (found.settings.batch_size, found.settings.lease_ttl) == (50, 30.0)
    assert found.settings.retry == ByType({"mail.*": Fixed(10), "*": Exponential(max_attempts=3)})
    routes = found.destinations()
    assert routes is not None
    assert [routes.target_for(topic) for topic in ("orders.placed", "mail")] == ["kafka://localhost", "stdout:"]


def test_the_project_file_is_read_when_it_has_our_table(tmp_path: Path):
    write(tmp_path, "[project]\nname = 'shop'\n", "pyproject.toml")
    assert load(environ={}, directory=tmp_path).file is None
    file = write(tmp_path, "[tool.postroom]\nbatch_size = 7\n", "pyproject.toml")
    found = load(environ={}, directory=tmp_path)
    assert (found.file, found.settings.batch_size) == (file, 7)
    assert load(file, environ={}).settings.batch_size == 7


def test_our_own_file_goes_before_the_project_file(tmp_path: Path):
    write(tmp_path, "[tool.postroom]\nbatch_size = 7\n", "pyproject.toml")
    write(tmp_path, "claim = 'leader'\n")
    settings = load(environ={}, directory=tmp_path).settings
    assert (settings.batch_size, settings.claim) == (500, "leader")


def test_the_file_may_be_named_by_argument_or_by_variable(tmp_path: Path):
    one = write(tmp_path, "batch_size = 1", "one.toml")
    two = write(tmp_path, "batch_size = 2", "two.toml")
    assert load(one, environ={}, directory=tmp_path).settings.batch_size == 1
    assert load(environ={"POSTROOM_CONFIG": str(two)}, directory=tmp_path).settings.batch_size == 2
    assert load(one, environ={"POSTROOM_CONFIG": str(two)}, directory=tmp_path).settings.batch_size == 1


def test_the_later_source_wins_and_none_is_unset(tmp_path: Path):
    write(tmp_path, "batch_size = 1\nconcurrency = 1\nclean_batch = 1\n")
    environ = {"POSTROOM_BATCH_SIZE": "2", "POSTROOM_CONCURRENCY": "2", "POSTROOM_CLEAN_BATCH": ""}
    settings = load(environ=environ, flags={"batch_size": 3, "concurrency": None}, directory=tmp_path).settings
    assert (settings.batch_size, settings.concurrency, settings.clean_batch) == (3, 2, 1)


def test_variables_take_tables_and_lists_as_json(tmp_path: Path):
    environ = {
        "POSTROOM_ROUTES": '{"orders": "stdout:"}',
        "POSTROOM_LATEST_ONLY": '["stock.*"]',
        "POSTROOM_RETRY": "never",
        "POSTROOM_ENABLED": "off",
        "POSTROOM_MAX_RATE": "12.5",
        "POSTROOM_STORE": "sqlite:///shop.db",
    }
    found = load(environ=environ, directory=tmp_path)
    assert found.routes == {"orders": "stdout:"}
    assert found.store == "sqlite:///shop.db"
    assert found.settings == Settings.of(latest_only=["stock.*"], retry=Never(), enabled=False, max_rate=12.5)


def test_a_publisher_takes_what_no_route_of_its_source_matches(tmp_path: Path):
    write(tmp_path, "publisher = 'stdout:'\n[routes]\norders = 'kafka:'\n")
    routes = load(environ={}, directory=tmp_path).destinations()
    assert routes is not None
    assert dict(routes.targets) == {"orders": "kafka:", "*": "stdout:"}


def test_a_later_publisher_replaces_the_routes_of_earlier_sources(tmp_path: Path):
    write(tmp_path, "[routes]\norders = 'kafka:'\n'*' = 'amqp:'\n")
    routes = load(environ={}, flags={"publisher": "stdout:", "routes": None}, directory=tmp_path).destinations()
    assert routes is not None
    assert dict(routes.targets) == {"*": "stdout:"}


def test_without_routes_there_are_no_destinations():
    assert Configuration().destinations() is None


def test_two_destinations_for_the_rest_contradict_each_other(tmp_path: Path):
    write(tmp_path, "publisher = 'stdout:'\n[routes]\n'*' = 'kafka:'\n")
    with pytest.raises(ConfigurationError, match=r"publisher and the route '\*'"):
        load(environ={}, directory=tmp_path)


def test_a_route_that_never_matches_is_cautioned_against(tmp_path: Path):
    write(tmp_path, "[routes]\n'*' = 'kafka:'\norders = 'stdout:'\n")
    assert load(environ={}, directory=tmp_path).cautions() == ["route 'orders' never matches: one above it does"]


def test_unknown_variables_are_ignored_but_near_misses_are_pointed_out(tmp_path: Path):
    environ = {"POSTROOM_SERVICE_HOST": "10.0.0.1", "POSTROOM_PORT": "tcp://x", "POSTROOM_BATCHSIZE": "5", "PATH": "/"}
    found = load(environ=environ, directory=tmp_path)
    assert found.settings == Settings()
    assert found.cautions() == ["POSTROOM_BATCHSIZE is ignored; did you mean POSTROOM_BATCH_SIZE?"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("batchsize = 5", r"^batchsize in postroom.toml: there is no such setting; did you mean 'batch_size'\?"),
        ("batch_size = 'x'", r"^batch_size in postroom.toml: 'x' must be a whole number"),
        ("store = 5", r"^store in postroom.toml: a int is no text"),
        ("store = ''", r"^store in postroom.toml: "),
        ("routes = 'stdout:'", r"^routes in postroom.toml: write a table"),
        ("[routes]", r"^routes in postroom.toml: write a table"),
        ("[routes]\norders = 5", r"^routes in postroom.toml\['orders'\]: "),
        ("[routes]\n'' = 'stdout:'", r"^routes in postroom.toml: '' is no glob"),
        ("serializer = 'xml'", r"^serializer in postroom.toml: serializer 'xml' cannot be loaded"),
        ("retry = 'fixed soon'", r"^retry in postroom.toml: wait: 'soon' is not"),
        ("settings = 1", r"^settings in postroom.toml: there is no such setting"),
        ("file = 'x'", r"^file in postroom.toml: there is no such setting"),
        ("a = 1\nb = = 2", r"postroom.toml cannot be read: .*line 2"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_the_file(tmp_path: Path, text: str, complaint: str):
    write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=complaint):
        load(environ={}, directory=tmp_path)


def test_a_mistake_in_a_variable_or_a_flag_is_named_as_the_user_wrote_it(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"^POSTROOM_LEASE_TTL: 'soon'"):
        load(environ={"POSTROOM_LEASE_TTL": "soon"}, directory=tmp_path)
    with pytest.raises(ConfigurationError, match=r"^POSTROOM_ROUTES is not valid JSON"):
        load(environ={"POSTROOM_ROUTES": "{orders"}, directory=tmp_path)
    with pytest.raises(ConfigurationError, match=r"^--lease-ttl: 'soon'"):
        load(environ={}, flags={"lease_ttl": "soon"}, directory=tmp_path)
    with pytest.raises(ConfigurationError, match=r"^--lease: there is no such setting"):
        load(environ={}, flags={"lease": "soon"}, directory=tmp_path)


def test_a_file_that_is_not_there_or_cannot_be_read_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml' does not exist"):
        load(tmp_path / "nowhere.toml", environ={})
    with pytest.raises(ConfigurationError, match="is not a file"):
        load(tmp_path, environ={})
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigurationError, match=r"latin\.toml cannot be read"):
        load(tmp_path / "latin.toml", environ={})


@pytest.mark.parametrize("text", ["tool = 1", "[tool]\npostroom = 1"])
def test_a_project_file_without_a_table_for_us_is_an_error(tmp_path: Path, text: str):
    write(tmp_path, text, "pyproject.toml")
    with pytest.raises(ConfigurationError, match=r"\[tool\.postroom\] is no table"):
        load(environ={}, directory=tmp_path)


def test_no_error_shows_a_password(tmp_path: Path):
    with pytest.raises(ConfigurationError) as caught:
        load(environ={}, flags={"routes": ["amqp://shop:s3cret@broker"]}, directory=tmp_path)
    assert "s3cret" not in str(caught.value)
