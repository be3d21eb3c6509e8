"""One row of the table of request options reaches every door: bodies, flags, defaults, programs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3_jax.sampling.options import AppliedBy, option, options_of
from eagle3_jax.sampling.params import REQUEST_OPTIONS, SamplingParams
from eagle3_jax.sampling.rows import NUMBERS, pack_sampling
from pallas_kernels.logits_argmax import ArgmaxOptions
from serve.generate.flags import parse_generate_flags
from serve.openai.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from serve.pair.generation_config import read_sampling_defaults
from serve.sglang.protocol import GenerateRequest

VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "typical_p": 0.75,
    "min_tokens": 3,
    "stop": ["a", "bc"],
    "stop_token_ids": [5, 9],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "logit_bias": {"4": 1.5},
    "allowed_token_ids": [1, 2],
    "repetition_penalty": 1.25,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "logprobs_mode": "processed_logprobs",
}
PLAIN = [name for name, row in REQUEST_OPTIONS.items() if row.json is not None]


def taken(body: GenerationRequest, name: str) -> SamplingParams:
    return SamplingParams(**{name: body.sampling_options()[name]})


def expected(name: str) -> SamplingParams:
    value: Any = {4: 1.5} if name == "logit_bias" else VALUES[name]
    return SamplingParams(**{name: value})


def flags(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if name == "stop":
        return [part for text in value for part in (flag, text)]
    values = value if isinstance(value, list) else [value]
    return [flag, *(json.dumps(v) if isinstance(v, dict) else str(v) for v in values)]


SGLANG = {"min_tokens": "min_new_tokens", "include_stop_str_in_output": "no_stop_trim"}


@pytest.mark.parametrize("name", PLAIN)
def test_every_plain_option_is_read_from_each_body_and_flag(name: str) -> None:
    given = {name: VALUES[name]}
    chat = {"messages": [{"role": "user", "content": "x"}]} | given
    assert taken(CompletionRequest.model_validate({"prompt": "x"} | given), name) == expected(name)
    assert taken(ChatCompletionRequest.model_validate(chat), name) == expected(name)
    params = {SGLANG.get(name, name): VALUES[name]}
    body = GenerateRequest.model_validate({"text": "x", "sampling_params": params})
    assert taken(body.prompt_options[0].sampling, name) == expected(name)
    argv = ["m", "--prompt", "x", *flags(name, VALUES[name])]
    assert SamplingParams(**parse_generate_flags(argv).sampling) == expected(name)


@pytest.mark.parametrize("name", [n for n, row in REQUEST_OPTIONS.items() if row.generation_config])
def test_every_default_of_generation_config_is_read(tmp_path: Path, name: str) -> None:
    written = REQUEST_OPTIONS[name].generation_config
    value = VALUES.get(name, 99)
    (tmp_path / "generation_config.json").write_text(json.dumps({written: value}))
    assert read_sampling_defaults(tmp_path).options == {name: value}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_the_device_reads_is_packed(name: str) -> None:
    row = getattr(pack_sampling(expected(name)), name)
    assert row.shape == (1,) and row[0] == VALUES[name]


def test_an_option_nobody_placed_does_not_import() -> None:
    unplaced: Any = {"meaning": "something"}
    with pytest.raises(TypeError, match="applied_by"):
        option(0.0, "a number", lambda value: True, **unplaced)

    @dataclass(frozen=True)
    class Table:
        forgotten: float = 0.0

    with pytest.raises(TypeError, match="forgotten"):
        options_of(Table)


def test_what_kernels_do_not_know_is_never_left_to_them() -> None:
    """A kernel that chooses tokens knows ids, seeds, temperature and min-p; nothing else that the
    device reads may claim every program."""
    by = {name: REQUEST_OPTIONS[name].applied_by for name in (*NUMBERS, "seed")}
    claimed = {name for name, applied in by.items() if applied is AppliedBy.EVERY_PROGRAM}
    assert claimed <= set(ArgmaxOptions._fields)
    assert AppliedBy.HOST not in by.values()
