"""Training state on disk: one npz file, replaced atomically."""

from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from eagle3_jax.replace_file import replaced

State = TypeVar("State")


def save_state(path: Path, state: object, step: int) -> None:
    """Writes the leaves of `state` and the step; a crash leaves the previous file whole."""
    arrays: dict[str, Any] = {"step": np.int64(step)}
    arrays |= {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        np.savez(file, **arrays)


def restore_state(path: Path, like: State) -> tuple[State, int]:
    """Reads a state of the structure and shapes of `like`, and its step.

    Raises ValueError when the file holds another model's state.
    """
    expected, structure = jax.tree.flatten(like)
    with np.load(path) as file:
        leaves = [file[f"leaf_{i}"] for i in range(len(file.files) - 1)]
        step = int(file["step"])
    shapes, wanted = [x.shape for x in leaves], [np.shape(x) for x in expected]
    if shapes != wanted:
        raise ValueError(f"{path} holds another model's training state; use a new directory")
    return jax.tree.unflatten(structure, [jax.numpy.asarray(leaf) for leaf in leaves]), step
