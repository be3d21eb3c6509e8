"""--kv-events-config: vLLM's fields, one line for each mistake."""

import json
from collections.abc import Callable

import pytest

from serve.kv_events.config import HASHES_VARIABLE, KVEventsConfig
from serve.options.foreign import describe_ignored_variables
from serve.options.serve_flags import parse_serve_flags

ON = {"enable_kv_cache_events": True}


def parse(*argv: str, **fields: object) -> KVEventsConfig | None:
    given = ["--kv-events-config", json.dumps(fields)] if fields else []
    return parse_serve_flags(["--demo", *argv, *given])[0].operations.kv_events


def test_events_are_published_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse() is None
    assert parse(publisher="zmq") is None
    assert parse(**ON, publisher="null") is None
    assert parse(**ON) == parse(**ON, publisher="zmq") == KVEventsConfig()
    assert KVEventsConfig().endpoint == "tcp://127.0.0.1:5557"
    monkeypatch.setenv(HASHES_VARIABLE, "0")
    assert parse(**ON) == KVEventsConfig(int_hashes=False), "whole keys"
    assert not [*describe_ignored_variables({HASHES_VARIABLE: "0"})]


def test_every_field_counts() -> None:
    fields = {
        "endpoint": "tcp://*:7000",
        "replay_endpoint": "tcp://*:7001",
        "buffer_steps": 3,
        "hwm": 4,
        "max_queue_size": 5,
        "topic": "kv@pod@model",
        "lookahead_token_ids": False,
    }
    assert parse(**ON, **fields) == KVEventsConfig(**fields)
    dotted = [f"--kv-events-config.{name}={json.dumps(value)}" for name, value in fields.items()]
    assert parse(*dotted, "--kv-events-config.enable_kv_cache_events=true") == parse(**ON, **fields)
    assert parse(**ON, replay_endpoint=None) == KVEventsConfig()


@pytest.mark.parametrize(
    "fields, exposed",
    [
        ({}, False),
        ({"endpoint": "ipc:///run/kv", "replay_endpoint": "tcp://[::1]:7001"}, False),
        ({"endpoint": "tcp://router.example:7000"}, False),
        ({"endpoint": "tcp://*:7000"}, True),
        ({"endpoint": "tcp://[::]:7000"}, True),
        ({"replay_endpoint": "tcp://10.0.0.7:7001"}, True),
    ],
)
def test_a_start_says_whether_others_can_read_prompts(fields: dict, exposed: bool) -> None:
    assert KVEventsConfig(**fields).exposed == exposed


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"port": 5557, "host": "a"}', "unknown fields ['host', 'port']"),
        ('{"enable_kv_cache_events": "yes"}', "enable_kv_cache_events must be true or false"),
        ('{"publisher": "nats"}', "publisher must be 'zmq' or 'null'; got 'nats'"),
        ('{"endpoint": "localhost:5557"}', "endpoint must begin with tcp://"),
        ('{"replay_endpoint": 5558}', "replay_endpoint must be an address of ZeroMQ; got 5558"),
        ('{"buffer_steps": 0}', "buffer_steps must be an integer above 0; got 0"),
        ('{"hwm": true}', "hwm must be an integer above 0; got True"),
    ],
)
def test_a_wrong_config_is_one_line(text: str, said: str, mistake: Callable[..., str]) -> None:
    assert said in mistake(parse, "--kv-events-config", text)


def test_what_could_publish_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[..., str]
) -> None:
    """Without shared prefixes, and without the packages."""
    without = "--no-enable-prefix-caching"
    assert without in mistake(parse, without, **ON)
    monkeypatch.setattr("serve.kv_events.config._packages_are_installed", lambda: False)
    assert "eagle3-jax[kv-events]" in mistake(parse, **ON)
