"""Losses and gradients of speculators' EAGLE-3 on tiny weights: `make peer-goldens`.

What tests/eagle3_jax/training/test_peer.py holds ours to.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers.speculators_draft import LOSSES, fill, loss_of, make_draft
from safetensors.numpy import save_file

GOLDENS = Path(__file__).parents[1] / "eagle3_jax" / "training" / "goldens"
SHAPE = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
}
VARIANTS = {
    "plain": {},
    "eagle31": {"norm_before_residual": True, "norm_output": True, "fc_norm": True},
}
STEPS, DECAY = 4, 0.8
SAMPLES = (19, 7, 14)
"""Tokens of each; the first of a sample are its prompt, and the row ends in padding."""
PROMPT, LENGTH = 5, 48


def main() -> None:
    """Writes a file for each variant."""
    for number, (name, variant) in enumerate(VARIANTS.items()):
        rng = np.random.default_rng(number)
        draft = make_draft(SHAPE, variant)
        weights = random_weights(rng, draft)
        fill(draft, weights)
        batch = random_batch(rng, SHAPE, SAMPLES, LENGTH)
        arrays = {f"batch.{key}": value for key, value in batch.items()}
        arrays |= {f"weight.{key}": value for key, value in weights.items()}
        for loss in LOSSES:
            draft.zero_grad()
            total = loss_of(draft, batch, STEPS, DECAY, loss)
            total.backward()
            arrays[f"loss.{loss}"] = total.detach().numpy()[None]
            for key, parameter in draft.named_parameters():
                if parameter.grad is not None:
                    arrays[f"gradient.{loss}.{key}"] = parameter.grad.numpy().copy()
        path = GOLDENS / f"speculators_{name}.safetensors"
        described = {"shape": SHAPE, "variant": variant, "steps": STEPS, "decay": DECAY}
        save_file(arrays, path, metadata={"described": json.dumps(described)})
        print(f"{path.name}: {sum(key.startswith('gradient') for key in arrays)} gradients")


def random_weights(rng: np.random.Generator, draft: Any) -> dict[str, np.ndarray]:
    """For each of a draft's parameters."""
    shapes = {name: tuple(value.shape) for name, value in draft.state_dict().items()}
    return {name: _weights(rng, name, shape) for name, shape in shapes.items()}


def _weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Wide enough that no part of the arithmetic is lost in the sum."""
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    scale = 2.0 if "verifier" in name else 1.0
    return (scale * rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)


def random_batch(
    rng: np.random.Generator, shape: Mapping[str, int], samples: Sequence[int], length: int
) -> dict[str, np.ndarray]:
    """Packed samples; taught: rows whose next token and the one after it are wanted."""
    segments, positions, wanted = (np.zeros(length, np.int32) for _ in range(3))
    at = 0
    for number, size in enumerate(samples, start=1):
        segments[at : at + size], positions[at : at + size] = number, np.arange(size)
        wanted[at + PROMPT : at + size] = 1
        at += size
    wide = {"aux": 3 * shape["hidden_size"], "hidden": shape["hidden_size"]}
    features = {
        name: rng.standard_normal((length, width)).astype(np.float32)
        for name, width in wide.items()
    }
    return {
        "token_ids": rng.integers(0, shape["vocab_size"], length).astype(np.int32),
        "segments": segments,
        "positions": positions,
        "wanted": wanted.astype(np.float32),
        "taught": (np.roll(wanted, -1) * np.roll(wanted, -2)).astype(np.float32),
        **features,
    }


if __name__ == "__main__":
    sys.exit(main())
