"""--kv-role and --kv-transfer-config: one line for each mistake."""

import json

import pytest

from serve.kv_transfer.config import DEFAULT_BYTES, KVTransferConfig
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions


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


def test_every_field_counts() -> None:
    fields = {"engine_id": "a", "kv_ip": "0.0.0.0", "kv_port": 7}
    extra = {"kv_connector_extra_config": {"expiry_s": 9}}
    found = parse(kv_role="kv_both", kv_connector="Eagle3JaxConnector", **fields, **extra)
    assert found.kv_transfer == KVTransferConfig("both", "a", "0.0.0.0", 7, 9.0)


@pytest.mark.parametrize(
    ("argv", "fields", "message"),
    [
        ([], {"kv_role": "kv_both", "kv_connector": "NixlConnector"}, "'NixlConnector'"),
        ([], {"kv_role": "kv_all"}, "kv_role must be one of"),
        ([], {"engine_id": "a"}, "kv_role must be"),
        ([], {"kv_role": "kv_both", "kv_rank": 1}, "unknown fields ['kv_rank']"),
        ([], {"kv_role": "kv_both", "kv_port": "1"}, "kv_port must be int"),
        ([], {"kv_role": "kv_both", "kv_port": 70000}, "kv_port must be in"),
        (
            [],
            {"kv_role": "kv_both", "kv_connector_extra_config": {"a": 1}},
            "there are expiry_s, producers",
        ),
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
