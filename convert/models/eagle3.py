"""Table of the published tensors of an EAGLE-3 draft, with either attention."""

from convert.models.latent_attention import latent_attention_rules
from convert.models.rules import Rule, norm_rule, projection_rule
from eagle3_jax.config import DraftConfig

_LAYER = "midlayer."
_ATTENTION = _LAYER + "self_attn."
_SPELLINGS = {
    "layers.0.": _LAYER,
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}


def draft_rules(config: DraftConfig, *, own_lm_head: bool = True) -> list[Rule]:
    """Return the table of one configuration, by canonical names (`canonical_draft_name`)."""
    norms = [
        "norm",
        *(_LAYER + n for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
        *(["input_norm"] if config.norm_before_fc else []),
        *(["fc_norm.{aux}"] if config.fc_norm else []),
    ]
    projections = ["fc", *(_LAYER + f"mlp.{name}_proj" for name in ("gate", "up", "down"))]
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *map(norm_rule, norms),
        *map(projection_rule, projections),
        *_attention_rules(config),
        projection_rule("lm_head")
        if own_lm_head
        else Rule("lm_head.weight", why="the target's lm_head was asked for"),
        Rule("d2t", ("d2t",), dtypes=("I64", "I32"), saved="I64")
        if config.draft_vocab_size < config.vocab_size
        else Rule("d2t", why="a full vocabulary needs no map"),
        Rule("t2d", why="used in training only: which target ids the draft knows"),
    ]


def canonical_draft_name(name: str) -> str:
    """Return our name of a tensor: no `model.`, `midlayer.` for `layers.0.`, norms as released."""
    name = name.removeprefix("model.")
    for spelling, ours in _SPELLINGS.items():
        if name.startswith(spelling):
            return ours + name.removeprefix(spelling)
    return name


def _attention_rules(config: DraftConfig) -> list[Rule]:
    if config.latent is not None:
        return latent_attention_rules(_ATTENTION, config.latent)
    return [
        *(projection_rule(_ATTENTION + f"{name}_proj") for name in "qkvo"),
        Rule(_ATTENTION + "rotary_emb.inv_freq", why="computed from the configuration"),
    ]
