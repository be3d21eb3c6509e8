"""The published tensors of an EAGLE-3 draft with Llama-style attention as a table."""

import re

from convert.rules import TRANSPOSED, Rule
from eagle3_jax.config import DraftConfig

_LAYER = "midlayer."


def draft_rules(config: DraftConfig, *, own_lm_head: bool = True) -> list[Rule]:
    """The table for one configuration; names are canonical, see `canonical_draft_name`."""
    norms = [
        "norm",
        *(_LAYER + n for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
    ]
    projections = [
        "fc",
        *(_LAYER + f"self_attn.{name}_proj" for name in "qkvo"),
        *(_LAYER + f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    ]
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *(Rule(f"{name}.weight", (f"{name}.weight",)) for name in norms),
        *(Rule(f"{name}.weight", (f"{name}.kernel",), TRANSPOSED) for name in projections),
        Rule("lm_head.weight", ("lm_head.kernel",), TRANSPOSED)
        if own_lm_head
        else Rule("lm_head.weight", why="the target's lm_head was asked for"),
        Rule("d2t", ("d2t",), dtypes=("I64", "I32"), saved="I64")
        if config.draft_vocab_size < config.vocab_size
        else Rule("d2t", why="a full vocabulary needs no map"),
        Rule("t2d", why="used in training only: which target ids the draft knows"),
        Rule(_LAYER + "self_attn.rotary_emb.inv_freq", why="computed from the configuration"),
    ]


def canonical_draft_name(name: str) -> str:
    """Maps the dialects `layers.0.` and a `model.` prefix to `midlayer.`."""
    return re.sub(r"^layers\.0\.", _LAYER, re.sub(r"^model\.", "", name))
