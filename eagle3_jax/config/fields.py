"""Tables of the known fields of a published configuration, and checks against them.

A field is neutral if no value of it changes the arithmetic, or if its value is implemented. Other
values are refused by name. A field that no table names is unknown; loaders list it in a warning.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_jax.config.published import require_values

Values = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The known fields of one object of config.json. Null counts as absent.

    Attributes:
        read: Fields that the reader interprets.
        only: Fields that change the arithmetic, with their implemented values.
        off, absent: Such fields that must be false, and those that must not be there at all.
        ignored: Fields without influence on the arithmetic.
        objects: Fields that hold an object or a list of objects, with the known fields of these
            objects; `*` stands for every other name.
    """

    read: Collection[str] = ()
    only: Values = field(default_factory=dict)
    off: Collection[str] = ()
    absent: Collection[str] = ()
    ignored: Collection[str] = ()
    objects: Mapping[str, "Fields"] = field(default_factory=dict)

    @property
    def implemented(self) -> dict[str, tuple[Any, ...]]:
        """The implemented values of every field that changes the arithmetic."""
        given = {**dict.fromkeys(self.off, (False,)), **dict.fromkeys(self.absent, ())}
        return {**given, **self.only}

    def extended(self, *, only: Values | None = None, **names: Collection[str]) -> "Fields":
        """Return a copy with additional fields; `only` replaces the values of existing fields."""
        joined: Any = {kind: (*getattr(self, kind), *more) for kind, more in names.items()}
        return replace(self, only={**self.only, **(only or {})}, **joined)

    def require(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError naming every field with a refused value, including nested fields."""
        require_values(given, self.implemented)
        for name, value in given.items():
            for inner, item in self._inside(name, value):
                inner.require(item)

    def unknown(self, given: Mapping[str, Any]) -> list[str]:
        """Return the names of unknown fields; nested names are joined with dots."""
        known = {*self.read, *self.implemented, *self.ignored, *self.objects}
        found: list[str] = []
        for name, value in given.items():
            for inner, item in self._inside(name, value):
                found += [f"{name}.{one}" for one in inner.unknown(item)]
            if not (value is None or name in known or "*" in known or name.startswith("_")):
                found.append(name)
        return found

    def _inside(self, name: str, value: Any) -> Iterator[tuple["Fields", Mapping[str, Any]]]:
        """Yield the objects in one field, each with its table of known fields."""
        if inner := self.objects.get(name, self.objects.get("*")):
            items = value if isinstance(value, list) else [value]
            yield from ((inner, item) for item in items if isinstance(item, Mapping))


METADATA = (
    *("architectures", "model_type", "auto_map", "dtype", "torch_dtype", "transformers_version"),
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_scores"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "prefix"),
    *("tokenizer_class", "tf_legacy_loss", "use_bfloat16", "torchscript", "pruned_heads"),
    *("is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size"),
    *("chunk_size_feed_forward", "initializer_range", "attention_dropout", "hidden_dropout"),
    *("aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "router_jitter_noise"),
    *("output_router_logits", "pretraining_tp", "ep_size"),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
    *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
    *("length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id"),
    *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
    *("begin_suppress_tokens", "return_dict_in_generate"),
)
"""Fields that transformers and trainers leave in a configuration: names, defaults of `generate`,
training losses, and token ids, which are read by the readers that need them."""

ROPE_PARAMETERS = Fields(
    read=(
        *("type", "rope_type", "rope_theta", "factor", "original_max_position_embeddings"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        *("attention_factor", "partial_rotary_factor"),
    ),
    only={
        "attn_factor": (1,),
        "extrapolation_factor": (1,),
        "truncate": (True,),
    },
    off=("mrope_interleaved",),
    absent=("mrope_section", "full_attention", "sliding_attention"),
    ignored=("finetuned",),
)
"""Fields of `rope_scaling` or `rope_parameters`. One rotation per layer type is not supported."""

DECODER = Fields(
    read=(
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("max_position_embeddings", "rms_norm_eps", "rope_theta", "partial_rotary_factor"),
        *("quantization_config", "sliding_window", "layer_types"),
    ),
    only={
        "hidden_act": ("silu",),
        "is_causal": (True,),
        "position_embedding_type": ("rope",),
        "embedding_multiplier": (1,),
        "residual_multiplier": (1,),
        "logits_scaling": (1,),
        "logit_scale": (1,),
    },
    off=(
        *("tie_word_embeddings", "is_encoder_decoder", "add_cross_attention"),
        *("attention_bias", "qkv_bias", "bias", "mlp_bias", "qk_layernorm"),
        *("use_sliding_window", "use_qk_norm", "use_gemma_norm"),
        *("attn_output_gate", "mla_use_output_gate", "mla_use_nope", "attn_temperature_tuning"),
    ),
    absent=(
        # Attention.
        *("attn_window_size", "sliding_window_pattern", "attention_chunk_size"),
        *("dual_chunk_attention_config", "linear_attn_config", "sparse_attention_config"),
        *("index_topk", "index_n_heads", "index_head_dim", "clip_qkv"),
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        "attention_multiplier",
        # Positions.
        *("no_rope_layers", "no_rope_layer_interval", "llama_4_scaling"),
        # Residuals and the dense MLP.
        *("attn_res_block_size", "hc_mult", "swiglu_alpha", "swiglu_limit"),
        *("activation_situ_beta", "activation_situ_linear_beta"),
    ),
    ignored=(*METADATA, "max_window_layers"),
    objects={"rope_scaling": ROPE_PARAMETERS, "rope_parameters": ROPE_PARAMETERS},
)
"""Fields common to targets and drafts. The fields in `only` are those that vLLM, SGLang or
transformers interpret for some model of a similar architecture."""


def require_full_attention(given: Mapping[str, Any]) -> None:
    """Raise ValueError if a sliding window or a layer type limits the attended context."""
    if given.get("use_sliding_window") is not False:
        require_values(given, {"sliding_window": ()})
    kinds = given.get("layer_types")
    if not isinstance(kinds, list) or any(kind != _FULL for kind in kinds):
        require_values(given, {"layer_types": ([_FULL],)})


_FULL = "full_attention"
