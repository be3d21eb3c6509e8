"""No field of a configuration is ignored in silence: it is read, neutral, refused or unknown."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from published_configs import (
    DRAFT,
    KIMI,
    KIMI_TEXT,
    LATENT,
    MINIMAX,
    SPECULATORS,
    read_draft,
    read_latent,
)

from eagle3_jax.config import DraftConfig, read_target_config
from eagle3_jax.config.draft import DRAFT_FIELDS
from eagle3_jax.config.fields import Fields
from eagle3_jax.config.targets import target_fields

LLAMA = {
    "model_type": "llama",
    **{k: KIMI_TEXT[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers")},
    **{k: KIMI_TEXT[k] for k in ("num_attention_heads", "max_position_embeddings")},
    "intermediate_size": 64,
    "rms_norm_eps": 1e-5,
}
TARGETS = {"kimi": KIMI_TEXT, "minimax": MINIMAX, "llama": LLAMA}
CHANGING = {
    "hidden_act": "gelu",
    "is_causal": False,
    "attention_bias": True,
    "sliding_window": 4096,
    "layer_types": ["sliding_attention"],
    "index_topk": 2048,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "partial_rotary_factor": 0.25,
    "rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]},
    "rope_parameters": {"full_attention": {"rope_theta": 1e6}},
    "final_logit_softcapping": 30.0,
    "clip_qkv": 8.0,
}
OF_DRAFTS = {
    **CHANGING,
    "use_qk_norm": True,
    "use_moe": True,
    "n_routed_experts": 384,
    "parallel_drafting": True,
    "ptd_token_id": 163838,
    "mask_token_id": 163838,
    "parallel_draft_step": 2,
    "next_layer_regular": False,
}


def innermost(change: dict[str, Any]) -> str:
    """The field that an error should name: the last one of the object that is changed."""
    name, value = list(change.items())[-1]
    return list(value)[-1] if isinstance(value, dict) else name


@pytest.mark.parametrize("name", OF_DRAFTS)
def test_a_draft_with_another_arithmetic_is_refused_by_name(name: str) -> None:
    """At either level, and in the layer that speculators nests."""
    change = {name: OF_DRAFTS[name]}
    nested = SPECULATORS["transformer_layer_config"] | change
    for changed in (
        DRAFT | change,
        LATENT | change,
        {k: v for k, v in DRAFT.items() if k != name} | {"eagle_config": change},
        SPECULATORS | {"transformer_layer_config": nested},
    ):
        if name == "sliding_window":
            changed = {k: v for k, v in changed.items() if k != "use_sliding_window"}
        with pytest.raises(ValueError, match=rf"{innermost(change)} must be .* got "):
            DraftConfig.from_hf(changed, num_target_layers=61)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CHANGING)
def test_a_target_with_another_arithmetic_is_refused_by_name(target: str, name: str) -> None:
    """Also by the file around a text model."""
    change = {name: CHANGING[name]}
    around = name in ("index_topk", "mla_use_nope", "attention_bias") and target == "kimi"
    for config in (TARGETS[target], *[KIMI] * around):
        with pytest.raises(ValueError, match=rf"{innermost(change)} must be .* got "):
            read_target_config(config | change)


NEUTRAL: list[dict[str, Any]] = [
    *({name: None} for name in OF_DRAFTS),
    {"use_moe": False, "n_routed_experts": 384, "n_shared_experts": 1},
    {"n_routed_experts": 384, "first_k_dense_replace": 1, "moe_layer_freq": 1},
    {"mla_use_nope": False, "mla_use_output_gate": False, "use_qk_norm": False},
    {"parallel_drafting": False, "ptd_token_id": None},
    {"eagle_config": {"parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1}},
    {"sliding_window": 4096, "use_sliding_window": False},
    {"partial_rotary_factor": 1.0, "layer_types": ["full_attention"]},
    {"eagle_aux_hidden_state_layer_ids": []},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}},
    {"eagle_aux_hidden_state_layer_ids": [], "eagle_config": {"fc_norm": None}},
]


@pytest.mark.parametrize("change", NEUTRAL, ids=str)
def test_a_neutral_value_of_a_draft_changes_nothing(change: dict[str, Any]) -> None:
    plain = {"rope_scaling": None, "rope_parameters": LATENT["rope_scaling"], "rope_theta": 5e4}
    change = {k: v for k, v in change.items() if k not in ("hidden_act", "rope_parameters")}
    assert read_draft(**plain | change) == read_draft(**plain)
    assert read_latent(**plain | change) == read_latent(**plain)


def test_the_old_name_of_a_norm_is_read() -> None:
    assert read_latent(use_aux_norm=True) == read_latent(fc_norm=True)
    assert read_latent(eagle_config={"use_aux_norm": True}).fc_norm


def test_yarns_factor_on_cos_and_sin_may_be_stated_but_not_changed() -> None:
    scaling = KIMI_TEXT["rope_scaling"]
    stated = KIMI_TEXT | {"rope_scaling": scaling | {"attention_factor": 1.0}}
    assert read_target_config(stated) == read_target_config(KIMI_TEXT)
    with pytest.raises(ValueError, match=r"attention_factor must be 1\.0.*got 1\.5"):
        read_target_config(
            KIMI_TEXT | {"rope_scaling": scaling | {"attention_factor": 1.5}},
        )


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 1e4},
        {"rope_parameters": {"rope_theta": 1e4}},
        {"rope_scaling": KIMI_TEXT["rope_scaling"] | {"rope_type": "default"}},
        {"rope_parameters": {"factor": 32.0}},
    ],
    ids=str,
)
def test_two_statements_about_rotation_may_not_contradict_each_other(
    change: dict[str, Any],
) -> None:
    stated = {"rope_scaling": KIMI_TEXT["rope_scaling"] | {"rope_theta": 5e4, "rope_type": "yarn"}}
    assert read_target_config(KIMI_TEXT | stated) == read_target_config(KIMI_TEXT)
    with pytest.raises(ValueError, match="must be the same wherever the file states it, got"):
        read_target_config(KIMI_TEXT | stated | change)


def test_minimaxs_part_of_a_head_that_is_rotated_must_be_its_rotary_dim() -> None:
    assert read_target_config(MINIMAX | {"partial_rotary_factor": 0.5}).rope_dim == 64
    parameters = {"rope_theta": 5e6, "rope_type": "default", "partial_rotary_factor": 1.0}
    with pytest.raises(ValueError, match=r"partial_rotary_factor must be 0\.5, got 1\.0"):
        read_target_config(MINIMAX | {"rope_parameters": parameters})


def outcome(name: str, base: dict[str, Any], value: Any) -> Any:
    config = base | {name: value}
    try:
        if "draft_vocab_size" in base:
            return DraftConfig.from_hf(config, num_target_layers=61)
        return read_target_config(config)
    except (ValueError, TypeError) as error:
        return str(error)


BASES = {"draft": DRAFT, "latent": LATENT | {"eagle_config": None}, **TARGETS}


@pytest.mark.parametrize("base", BASES)
def test_tables_say_what_readers_do(base: str) -> None:
    """A field that counts as read makes a difference; one with given values refuses others."""
    config = BASES[base]
    known: Fields = DRAFT_FIELDS if "draft_vocab_size" in config else target_fields(config)
    plain = outcome("model_type", config, config["model_type"])
    without_effect = {
        name for name in known.read if outcome(name, config, {"no": "sense"}) == plain
    }
    assert without_effect <= {"quantization_config", *WITHOUT_EFFECT.get(base, ())}
    for name in known.implemented:
        assert f"{name} must be" in str(outcome(name, config, "nonsense")), name
    for name in known.ignored:
        if name not in ("architectures", "model_type", "eos_token_id", *known.implemented):
            assert outcome(name, config, config.get(name, "nonsense")) == plain, name


LATENT_WIDTHS = {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"}
WITHOUT_EFFECT = {
    # Of the other kind of attention, or turned off; a text model alone has no images.
    "draft": LATENT_WIDTHS | {"v_head_dim", "first_k_dense_replace", "sliding_window"},
    "latent": {"first_k_dense_replace", "sliding_window"},
    "kimi": {"media_placeholder_token_id"},
}


def test_unknown_fields_are_found_at_every_level() -> None:
    strange: dict[str, Any] = {"strange": 1, "_private": 1, "empty": None}
    draft = LATENT | strange
    draft |= {
        "eagle_config": LATENT["eagle_config"] | strange,
        "rope_scaling": LATENT["rope_scaling"] | strange,
    }
    assert DRAFT_FIELDS.unknown(draft) == [
        "rope_scaling.strange",
        "eagle_config.strange",
        "strange",
    ]
    target = KIMI | strange | {"vision_config": {"patch_size": 14, "strange": 1}}
    target["sliding_window"] = 4096  # of the file around the text, which nothing reads there
    target["text_config"] = KIMI_TEXT | strange
    found = target_fields(target).unknown(target)
    named = ["text_config.strange", "vision_config.strange", "strange"]
    assert sorted(found) == sorted([*named, "sliding_window"])


WRONG = ([], {}, "a", float("nan"), -1, 2**70)
"""Of any type, and out of any range."""


def nested_fields(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (name,)
        if isinstance(value, dict):
            yield from ((name, *rest) for rest in nested_fields(value))


@pytest.mark.parametrize("name", [*TARGETS, "draft", "latent", "vision"])
def test_any_wrong_value_in_any_field_is_refused_in_one_line_or_means_nothing(name: str) -> None:
    whole = {**TARGETS, "draft": DRAFT, "latent": LATENT, "vision": KIMI}[name]
    draft = name in ("draft", "latent")
    read = partial(DraftConfig.from_hf, num_target_layers=61) if draft else read_target_config
    for path in nested_fields(whole):
        for value in WRONG:
            config = copy.deepcopy(whole)
            place = config
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
            try:
                read(config)
            except ValueError as error:
                assert "\n" not in str(error) and str(error), path
