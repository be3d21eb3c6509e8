"""generation_config.json as the server's defaults."""

import json
from pathlib import Path

import pytest

from serve.pair.generation_config import SamplingDefaults, choose_defaults, read_sampling_defaults


@pytest.mark.parametrize("eos, expected", [(7, (7,)), ([7, 8], (7, 8)), (None, ())])
def test_known_names_are_taken_and_the_rest_left(
    tmp_path: Path, eos: object, expected: tuple[int, ...]
) -> None:
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    config = {"temperature": 0.6, "max_new_tokens": 99, "do_sample": True, "eos_token_id": eos}
    config |= {"repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    defaults = read_sampling_defaults(tmp_path)
    assert defaults.options == {"temperature": 0.6, "max_tokens": 99, "repetition_penalty": 1.1}
    assert defaults.eos_token_ids == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"top_p": "much"}', '{"temperature": -1}'])
def test_a_spoiled_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        read_sampling_defaults(tmp_path)


@pytest.mark.parametrize(
    "source, overrides, expected",
    [
        ("auto", None, {"temperature": 0.6, "top_p": 0.9}),
        ("auto", '{"temperature": 0, "max_new_tokens": 5}', {"temperature": 0, "max_tokens": 5}),
        ("vllm", None, {}),
        ("vllm", '{"top_k": 3}', {"top_k": 3}),
        ("DIR", None, {"min_p": 0.1}),
    ],
)
def test_flags_choose_whose_defaults_hold(
    tmp_path: Path, source: str, overrides: str | None, expected: dict[str, float]
) -> None:
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1}')
    source = str(tmp_path) if source == "DIR" else source
    found = choose_defaults(source, overrides)(SamplingDefaults({"temperature": 0.6, "top_p": 0.9}))
    assert expected.items() <= found.items()
    assert ("top_p" in found) == (source == "auto")


@pytest.mark.parametrize(
    "source, overrides, naming",
    [
        ("nowhere", None, "nowhere does not exist"),
        (str(Path(__file__).parent), None, "holds no generation_config"),
        ("auto", '{"top_p": 7}', "--override-g"),
    ],
)
def test_defaults_that_can_not_be_had_are_named(
    source: str, overrides: str | None, naming: str
) -> None:
    with pytest.raises((OSError, ValueError), match=naming):
        choose_defaults(source, overrides)
