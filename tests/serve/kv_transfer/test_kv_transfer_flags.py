"""--kv-role and --kv-transfer-config: one line for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve.kv_transfer.config import DEFAULT_BYTES, KVTransferConfig
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

KEY = bytes(range(32))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY.hex())
    path.chmod(0o600)
    return path


def consumer(**extra: object) -> dict[str, object]:
    return {"kv_role": "kv_consumer", "kv_connector_extra_config": extra}


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
    key = "--kv-transfer-key-file", str(key_file)
    found = parse(*key, kv_role="kv_both", **fields, **extra).kv_transfer
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
    role: str, fields: dict[str, Any], key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(kv_role=role, **fields)
    assert "give --kv-transfer-key-file FILE" in capsys.readouterr().err
    parse("--kv-transfer-key-file", str(key_file), kv_role=role, **fields)
    key_file.chmod(0o640)
    with pytest.raises(SystemExit):
        parse("--kv-transfer-key-file", str(key_file), kv_role=role, **fields)
    assert "--kv-transfer-key-file: others can read" in capsys.readouterr().err


def test_a_key_without_a_role_is_refused(
    key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("--kv-transfer-key-file", str(key_file))
    assert "--kv-transfer-key-file needs --kv-role" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "fields", "message"),
    [
        ([], {"kv_role": "kv_both", "kv_connector": "NixlConnector"}, "'NixlConnector'"),
        ([], {"kv_role": "kv_all"}, "kv_role must be one of"),
        ([], {"engine_id": "a"}, "kv_role must be"),
        ([], {"kv_role": "kv_both", "kv_rank": 1}, "unknown fields ['kv_rank']"),
        ([], {"kv_role": "kv_both", "kv_port": "1"}, "kv_port must be int"),
        ([], {"kv_role": "kv_both", "kv_port": 70000}, "kv_port must be in"),
        ([], consumer(a=1), "there are expiry_s, pull_timeout_s, producers"),
        ([], consumer(producers=["10.0.0.1"]), "producers must be a list of HOST:PORT"),
        ([], consumer(producers="10.0.0.1:5"), "producers must be a list of HOST:PORT"),
        ([], consumer(producers=["::1:5"]), "producers must be a list of HOST:PORT"),
        ([], consumer(pull_timeout_s=0), "pull_timeout_s must be seconds above 0"),
        (["--kv-transfer-key-file", "nowhere"], {}, "can't read nowhere"),
        (["--kv-role", "both"], {"kv_role": "kv_both"}, "give one of"),
        (["--kv-role", "both", "--no-enable-prefix-caching"], {}, "prefix cache, which is off"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(
    argv: list[str],
    fields: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(*argv, **fields)
    assert message in capsys.readouterr().err
