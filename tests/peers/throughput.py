"""Tokens a second of a draft's update, ours and speculators': `make peer-speed`.

Both have the same weights, batch and features, train the same parameters in float32 with AdamW and
clipped gradients, on one core, and take turns; both keep all activations, and ours once more as it
is by default, where backward computes them again. Their losses are compared first.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from eagle3_tools.bench.common.conditions import conditions, pin

BEFORE = conditions(pin(None))  # before the libraries start their threads

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from flax import nnx  # noqa: E402
from peer_golden import Golden, the_draft, the_teacher  # noqa: E402
from peers.speculators_draft import fill, loss_of, make_draft  # noqa: E402
from peers.training_goldens import random_batch, random_weights  # noqa: E402

from eagle3_jax.training.draft import (  # noqa: E402
    DraftModels,
    DraftRecipe,
    ahead,
    draft_update,
    split_draft,
    supervised_rows,
)
from eagle3_jax.training.loop import TrainState  # noqa: E402
from eagle3_jax.training.optimizer import adamw  # noqa: E402
from eagle3_jax.training.packing import Features, PackedBatch  # noqa: E402
from eagle3_tools.bench.common.command import write_record  # noqa: E402

SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SAMPLES = (200, 60, 90, 130)
"""Tokens of each in the one row."""
LENGTH, STEPS, DECAY = 512, 4, 0.8
REPETITIONS, RATE = 8, 1e-4
OURS = "ours", "ours_recomputing"
WEIGHT = sum(DECAY**step for step in range(STEPS))
"""Of their steps together; ours add up to 1."""


@dataclass(frozen=True)
class Speed:
    """first_losses: KL divergence before the first update, mean over steps. seconds: of the core
    that an update took, in turn; others' work on it does not count. ratio: our tokens a second over
    theirs, by medians; that of recomputing apart."""

    peer: str
    shape: dict[str, int]
    tokens: int
    unrolled_steps: int
    first_losses: dict[str, float]
    seconds: dict[str, list[float]]
    tokens_per_s: dict[str, float]
    ratio: float
    ratio_recomputing: float


def main() -> None:
    """Prints the ratio, and writes the record where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    draft = make_draft(SHAPE, {})
    weights = random_weights(rng, draft)
    fill(draft, weights)
    batch = random_batch(rng, SHAPE, SAMPLES, LENGTH)
    arrays = {f"weight.{name}": array for name, array in weights.items()}
    golden = Golden(arrays, {"shape": SHAPE, "variant": {}})
    sides = {
        "ours": our_update(golden, batch, keep_activations=True),
        "theirs": their_update(draft, batch),
        "ours_recomputing": our_update(golden, batch, keep_activations=False),
    }
    losses = {name: update() for name, update in sides.items()}
    if max(losses.values()) - min(losses.values()) > 1e-3:
        sys.exit(f"the losses differ, so the work is not the same: {losses}")
    for update in sides.values():
        update()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPETITIONS):
        for name, update in sides.items():
            began = time.process_time()
            update()
            seconds[name].append(round(time.process_time() - began, 4))
    speeds = {name: round(LENGTH / median(found), 1) for name, found in seconds.items()}
    ratio, again = (round(speeds[name] / speeds["theirs"], 3) for name in OURS)
    peer = f"speculators 0.9.0, PyTorch {torch.__version__}"
    result = Speed(peer, SHAPE, LENGTH, STEPS, losses, seconds, speeds, ratio, again)
    print(f"losses {losses}, tokens a second {speeds}: {ratio} times {peer}")
    if flags.json:
        write_record(flags.json, "training_speed", BEFORE, result)


def our_update(
    golden: Golden, batch: dict[str, np.ndarray], *, keep_activations: bool
) -> Callable[[], float]:
    """A function that makes the next update and returns the KL divergence before it."""
    graphdef, params, rest = split_draft(the_draft(golden))
    target_head, target_head_state = nnx.split(the_teacher(golden))
    optimizer = adamw(RATE, 10_000, warmup=1)
    recipe = DraftRecipe(STEPS, DECAY, keep_activations=keep_activations)
    update = jax.jit(
        draft_update(optimizer, DraftModels(graphdef, target_head), recipe), donate_argnums=0
    )
    rows = {name: jnp.asarray(array)[None] for name, array in batch.items()}
    packed = PackedBatch(*(rows[n] for n in ("token_ids", "segments", "positions", "wanted")))
    features = Features(rows["aux"], rows["hidden"])
    rows_taught = supervised_rows(packed.wanted)
    total = jnp.sum(rows_taught)
    log_p = jax.nn.log_softmax(the_teacher(golden).logits(ahead(features.hidden)), axis=-1)
    entropy = -jnp.sum(jnp.sum(jnp.exp(log_p) * log_p, axis=-1) * rows_taught) / total
    state = [TrainState(params, optimizer.init(params))]

    def step() -> float:
        state[0], metrics = update(state[0], (rest, target_head_state), packed, features, total)
        jax.block_until_ready(state[0])
        return float(metrics.loss - entropy)

    return step


def their_update(draft: Any, batch: dict[str, np.ndarray]) -> Callable[[], float]:
    """The same of theirs."""
    trained = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(draft, batch, STEPS, DECAY, "kl")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return float(loss.detach()) / WEIGHT

    return step


if __name__ == "__main__":
    sys.exit(main())
