"""Paths of the golden files, and functions to read them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ORACLES = Path(__file__).parent / "oracles"
PROMPTS = range(5)
DRAFTS = ("draft_mha_bf16", "draft_mha_d2t_bf16")
LATENT_DRAFT = "draft_mla_bf16"
FLOAT_DRAFTS = (*DRAFTS, LATENT_DRAFT)
MINIMAX_DRAFT = "draft_minimax_bf16"
WEIGHT_ONLY = "_weight_only"
QUANTIZED_DRAFTS = {
    "draft_mha_fp8_ptpc_actquant": "draft_mha_fp8_ptpc",
    "draft_mha_fp8_ptpc_weight_only": "draft_mha_fp8_ptpc",
    "draft_mha_int4_pc": "draft_mha_int4_pc",
    "draft_mha_int4_pc_awq": "draft_mha_int4_pc_awq",
}
"""Golden file -> checkpoint. Activations are quantised as published, except in weight_only."""
ALL_DRAFTS = (*FLOAT_DRAFTS, *QUANTIZED_DRAFTS)


def golden_arrays(name: str) -> dict[str, np.ndarray]:
    """Return the tensors of goldens/NAME.safetensors."""
    return load_file(ORACLES / "goldens" / f"{name}.safetensors")


def golden_json(name: str) -> Any:
    """Return the content of goldens/NAME.json."""
    return json.loads((ORACLES / "goldens" / f"{name}.json").read_text(encoding="utf-8"))
