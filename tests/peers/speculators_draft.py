"""A draft of speculators' (vllm-project/speculators, PyTorch) with given weights, on a CPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig

LOSSES = {"kl": "kl_div", "tv": "tv", "lk": "lk_hybrid"}
"""Ours by their names."""


def make_draft(shape: Mapping[str, int], variant: Mapping[str, bool]) -> Eagle3DraftModel:
    """In float32, with attention that needs no compiler; all its weights are trained but the
    embedding and the verifier's."""
    layer = LlamaConfig(
        **shape,
        num_hidden_layers=1,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=None,
        attn_implementation="eager",
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=shape["vocab_size"],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **variant,
    )
    draft = Eagle3DraftModel(config).float()
    draft.lm_head.weight.requires_grad_(True)
    return draft


def fill(draft: Eagle3DraftModel, weights: Mapping[str, np.ndarray]) -> None:
    """Gives the draft its weights; each of its own must be there."""
    draft.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})


def loss_of(
    draft: Eagle3DraftModel, batch: Mapping[str, np.ndarray], steps: int, decay: float, loss: str
) -> torch.Tensor:
    """Theirs of one packed row, whose arrays stand as ours do: row i has token i and features of
    position i. The weights of the steps do not add up to 1."""

    def row(name: str, ahead: int = 0) -> Any:
        return torch.tensor(np.roll(batch[name], -ahead, axis=0))[None]

    segments = row("segments")
    _, total, _ = draft(
        hidden_states=row("aux"),
        input_ids=row("token_ids", 1).long(),
        document_ids=torch.where(segments > 0, segments, -1),
        loss_mask=row("taught"),
        position_ids=row("positions").long(),
        verifier_last_hidden_states=row("hidden", 1),
        ttt_steps=steps,
        ttt_step_loss_decay=decay,
        loss_config=resolve_loss_config(LOSSES[loss], "eager"),
    )
    return total
