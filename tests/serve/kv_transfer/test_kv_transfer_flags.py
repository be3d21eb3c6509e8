"""--kv-role, --kv-transfer-config and kv_transfer_params: each mistake is named."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_server import Served

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from serve.asgi.errors import ApiError
from serve.kv_transfer.config import DEFAULT_BYTES, KVTransferConfig
from serve.openai.kv_transfer import KVTransferParams, with_transfer
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

KEY = bytes(range(32))
FILE = "--kv-transfer-key-file"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY.hex())
    path.chmod(0o600)
    return path


def parse(*argv: str, **fields: object) -> ServeOptions:
    given = ["--kv-transfer-config", json.dumps(fields)] if fields else []
    return parse_serve_flags(["--demo", *argv, *given])[0]


def test_both_forms_say_the_same_and_a_role_has_host_memory() -> None:
    assert parse().kv_transfer is None
    for role in ("producer", "consumer", "both"):
        ours, vllms = parse("--kv-role", role), parse(kv_role=f"kv_{role}")
        assert ours.kv_transfer == vllms.kv_transfer == KVTransferConfig(role)
        assert ours.engine.kv_offloading_bytes == DEFAULT_BYTES
    given = parse("--kv-role", "both", "--kv-offloading-size", "1")
    assert given.engine.kv_offloading_bytes == 2**30


def test_every_field_counts(key_file: Path) -> None:
    fields = {"engine_id": "a", "kv_ip": "0.0.0.0", "kv_port": 7}
    own = {"expiry_s": 9, "pull_timeout_s": 4, "producers": ["10.0.0.1:8", "[0::1]:9", "Host:1"]}
    extra = {"kv_connector": "Eagle3JaxConnector", "kv_connector_extra_config": own}
    found = parse(FILE, str(key_file), kv_role="kv_both", **fields, **extra).kv_transfer
    producers = ("10.0.0.1", 8), ("::1", 9), ("host", 1)
    assert found == KVTransferConfig("both", "a", "0.0.0.0", 7, 9.0, producers, 4.0, KEY)
    assert repr(KEY) not in repr(found)


@pytest.mark.parametrize(
    ("role", "fields"),
    [
        ("kv_producer", {"kv_ip": "10.0.0.1"}),
        ("kv_both", {"kv_ip": ""}),
        ("kv_producer", {"kv_ip": "::"}),
        ("kv_consumer", {"kv_connector_extra_config": {"producers": ["127.0.0.1:1", "a.b:2"]}}),
    ],
)
def test_an_address_of_other_machines_needs_a_key(
    role: str, fields: dict[str, Any], key_file: Path, mistake: Callable[..., str]
) -> None:
    fields = {"kv_role": role, **fields}
    assert f"give {FILE} FILE" in mistake(parse, **fields)
    parse(FILE, str(key_file), **fields)
    key_file.chmod(0o640)
    assert f"{FILE}: others can read" in mistake(parse, FILE, str(key_file), **fields)


def consumer(**extra: object) -> dict[str, object]:
    return {"kv_role": "kv_consumer", "kv_connector_extra_config": extra}


@pytest.mark.parametrize(
    ("argv", "fields", "message"),
    [
        ([], {"kv_role": "kv_both", "kv_connector": "NixlConnector"}, "'NixlConnector'"),
        ([], {"kv_role": "kv_all"}, "kv_role must be one of"),
        ([], {"engine_id": "a"}, "kv_role must be"),
        ([], {"kv_role": "kv_both", "kv_rank": 1}, "unknown fields ['kv_rank']"),
        ([], {"kv_role": "kv_both", "kv_port": "1"}, "kv_port must be an integer in 0..65535"),
        ([], {"kv_role": "kv_both", "kv_port": 70000}, "in 0..65535; got 70000"),
        ([], consumer(a=1), "there are expiry_s, pull_timeout_s, producers"),
        ([], consumer(producers=["10.0.0.1"]), "producers must be a list of HOST:PORT"),
        ([], consumer(producers="10.0.0.1:5"), "producers must be a list of HOST:PORT"),
        ([], consumer(producers=["::1:5"]), "producers must be a list of HOST:PORT"),
        ([], consumer(pull_timeout_s=0), "pull_timeout_s must be seconds above 0"),
        ([FILE, "KEY"], {}, f"{FILE} needs --kv-role"),
        ([FILE, "nowhere"], {}, "can't read nowhere"),
        (["--kv-role", "both"], {"kv_role": "kv_both"}, "give one of"),
        (["--kv-role", "both", "--no-enable-prefix-caching"], {}, "prefix cache, which is off"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(
    argv: list[str],
    fields: dict[str, object],
    message: str,
    key_file: Path,
    mistake: Callable[..., str],
) -> None:
    given = [f"{key_file}" if flag == "KEY" else flag for flag in argv]
    assert message in mistake(parse, *given, **fields)


BODIES = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_server_without_a_role_names_the_flag_unless_nothing_is_asked_for(
    fake: Served, path: str
) -> None:
    for wish in ("do_remote_decode", "do_remote_prefill"):
        body = BODIES[path] | {"kv_transfer_params": {wish: True}}
        answer = fake.http.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "kv_transfer_params")
        assert "--kv-role" in error["message"]
    for params in (None, {}, {"do_remote_decode": False, "remote_host": None}):
        answer = fake.http.post(path, json=BODIES[path] | {"kv_transfer_params": params})
        assert answer.status_code == 200 and "kv_transfer_params" not in answer.json()


def requests(count: int = 1, **options: Any) -> list[Request]:
    return [Request(f"{i}", [1, 2], SamplingParams(**options)) for i in range(count)]


DECODE, PREFILL = {"do_remote_decode": True}, {"do_remote_prefill": True}
STRANGER = {"remote_host": "10.1.2.3", "remote_port": 14579, "remote_request_id": "a"}
STRANGER |= {"remote_block_ids": [0], "remote_last_key": "ab" * 32}
OTHER_PORT = STRANGER | {"remote_host": "127.0.0.1", "remote_port": 80}


@pytest.mark.parametrize(
    ("role", "params", "asked", "said"),
    [
        ("both", DECODE | PREFILL, requests(), "exclude each other"),
        ("both", DECODE, requests(2), "n = 1"),
        ("both", PREFILL, requests(prompt_logprobs=1), "without logprobs of the prompt"),
        ("consumer", DECODE, requests(), "this server is a consumer"),
        ("producer", PREFILL, requests(), "this server is a producer"),
        ("consumer", PREFILL | STRANGER, requests(), "no producer that this server takes pages"),
        ("consumer", PREFILL | OTHER_PORT, requests(), "remote_port 80 are no producer"),
    ],
)
def test_parameters_that_role_or_body_rule_out_are_400_by_name(
    role: Any, params: dict[str, Any], asked: list[Request], said: str
) -> None:
    transfers: Any = SimpleNamespace(config=KVTransferConfig(role))
    with pytest.raises(ApiError, match=said) as error:
        with_transfer(KVTransferParams.model_validate(params), transfers, asked)
    assert (error.value.status, error.value.param) == (400, "kv_transfer_params")
