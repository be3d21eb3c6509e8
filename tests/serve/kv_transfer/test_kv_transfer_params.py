"""kv_transfer_params where a server has no role: refused by name, unless they ask for nothing."""

from types import SimpleNamespace
from typing import Any

import pytest
from fake_server import Served

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from serve.asgi.errors import ApiError
from serve.kv_transfer.config import KVTransferConfig
from serve.openai.kv_transfer import KVTransferParams, with_transfer

BODIES = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("wish", ["do_remote_decode", "do_remote_prefill"])
def test_a_server_without_a_role_names_the_flag(fake: Served, path: str, wish: str) -> None:
    body = BODIES[path] | {"kv_transfer_params": {wish: True}}
    answer = fake.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "kv_transfer_params")
    assert "--kv-role" in error["message"]


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False, "remote_host": None}])
def test_what_asks_for_nothing_passes(fake: Served, params: object) -> None:
    for path, body in BODIES.items():
        answer = fake.http.post(path, json=body | {"kv_transfer_params": params})
        assert answer.status_code == 200
        assert "kv_transfer_params" not in answer.json()


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
def test_what_role_or_body_rule_out_is_400_by_name(
    role: Any, params: dict[str, Any], asked: list[Request], said: str
) -> None:
    transfers: Any = SimpleNamespace(config=KVTransferConfig(role))
    with pytest.raises(ApiError, match=said) as error:
        with_transfer(KVTransferParams.model_validate(params), transfers, asked)
    assert (error.value.status, error.value.param) == (400, "kv_transfer_params")
