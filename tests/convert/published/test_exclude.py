"""Exclude patterns mean the same to us, in config.json and to those who prefix names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_files import ORACLES

from convert.files.safetensors_files import open_checkpoint, read_json
from convert.published.exclude import as_regexes, check_pattern, excluded, matches

KIMI = sorted(
    name.removesuffix(".weight")
    for name, info in open_checkpoint(ORACLES / "kimi_bf16").tensors.items()
    if name.endswith(".weight") and len(info.shape) == 2
)
DRAFT = sorted(
    name.removesuffix(".weight") for name in open_checkpoint(ORACLES / "quantizer/source").tensors
)
ROUTER = "language_model.model.layers.1.mlp.gate"


@pytest.mark.parametrize(
    ("pattern", "module", "holds"),
    [
        ("lm_head", "language_model.lm_head", True),
        ("layers.1.mlp.gate", ROUTER, True),
        (ROUTER, ROUTER, True),
        ("mlp.gate", ROUTER, False),
        ("gate", "language_model.model.layers.0.mlp.gate_proj", False),
        ("*mlp.gate", ROUTER, True),
        ("*self_attn*", "midlayer.self_attn.q_proj", True),
        ("[kv]_proj", "midlayer.self_attn.k_proj", True),
        ("[!kv]_proj", "midlayer.self_attn.k_proj", False),
        ("re:.*fc.*", "model.fc", True),
        ("re:fc", "midlayer.self_attn.fc_like", True),
        ("re:self_attn", "midlayer.self_attn.q_proj", False),
        ("re:q", "midlayer.self_attn.q_proj", True),
    ],
)
def test_a_pattern_holds_for_name_bare_name_or_last_component(
    pattern: str, module: str, holds: bool
) -> None:
    assert matches(pattern, module) == holds


@pytest.mark.parametrize("name", ["kimi-k2.5-eagle3-fp8", "kimi-k2.5-eagle3-fp8.vllm-edited"])
def test_both_published_forms_of_the_fp8_draft_keep_the_same_modules(name: str) -> None:
    config = read_json(ORACLES / "published" / f"{name}.config.json")
    patterns = config["quantization_config"]["exclude"]
    assert [module for module in DRAFT if excluded(module, patterns)] == ["fc", "lm_head"]


parts = st.sampled_from(["*", "?", "self_attn", "mlp", "gate", "_proj", ".", "fc", "[01]", "lm"])
patterns = st.one_of(
    st.sampled_from([*KIMI, *DRAFT, "lm_head", "gate", "fc0", "o_proj"]),
    st.lists(parts, min_size=1, max_size=4).map("".join),
    st.lists(parts, min_size=1, max_size=3).map(lambda p: "re:" + re.escape("".join(p))),
    st.sampled_from([r"re:.*mlp\.(gate|up)_proj.*", "re:q_a|kv_b", "re:.*", "re:lm_head"]),
)


@given(patterns)
def test_written_regexes_choose_the_same_modules_by_full_names(pattern: str) -> None:
    for modules in (KIMI, DRAFT):
        chosen = [module for module in modules if matches(pattern, module)]
        expressions = [regex.removeprefix("re:") for regex in as_regexes(pattern, modules)]
        assert chosen == [m for m in modules if any(re.match(e, m) for e in expressions)]


@given(st.sampled_from(DRAFT))
def test_the_regex_of_a_name_also_holds_under_another_prefix(module: str) -> None:
    (regex,) = as_regexes(module, DRAFT)
    assert re.match(regex.removeprefix("re:"), f"model.{module}")


def test_a_plain_name_becomes_the_form_that_the_published_draft_uses() -> None:
    assert as_regexes("fc", DRAFT) == ["re:.*fc.*"]
    # Here the loose form would also keep fc0 and fc1 of the vision tower.
    assert as_regexes("fc", [*KIMI, "fc"]) == [r"re:(.*\.)?fc$"]


def test_a_broken_regex_is_refused() -> None:
    with pytest.raises(ValueError, match=r"re:\(.* is no regular expression"):
        check_pattern("re:(")
