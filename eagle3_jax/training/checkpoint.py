"""Orbax checkpoints of training runs: the state and the position in the data."""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

State = TypeVar("State")
METRIC, UNMEASURED = "accept_length", 0.0


class Restored(NamedTuple):
    """A restored state, the data position from which the next step reads, and the steps done."""

    state: Any
    data: dict[str, Any]
    step: int


class Checkpoints:
    """The newest two checkpoints and the best one of a run, each written atomically.

    Writing overlaps with training; `finish` waits for the last write.
    """

    def __init__(self, directory: Path) -> None:
        policies = checkpoint_managers
        best = policies.BestN(get_metric_fn=_metric, n=1)
        options = ocp.CheckpointManagerOptions(
            best_fn=_metric,
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(2), best]),
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "data": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(
            directory.absolute(), item_handlers=handlers, options=options
        )

    def save(
        self, step: int, state: object, data: dict[str, Any], metrics: dict[str, float] | None
    ) -> None:
        """Save a step unless it is saved already; `metrics` are None if they were not measured."""
        if step in self._manager.all_steps():
            return
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(_named(state)), data=ocp.args.JsonSave(data)
        )
        self._manager.save(step, args=args, metrics=metrics or {METRIC: UNMEASURED})

    def restore(self, like: Any, step: int | None = None) -> Restored | None:
        """Restore the newest checkpoint, or a step's, with the structure and sharding of `like`.

        Returns None if there is none. Raises ValueError if it holds another model's state.
        """
        step = self._manager.latest_step() if step is None else step
        if step is None:
            return None
        wanted = _named(jax.tree.map(ocp.utils.to_shape_dtype_struct, like))
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(wanted), data=ocp.args.JsonRestore()
        )
        found = self._manager.item_metadata(step)["state"]
        if {name: tuple(leaf.shape) for name, leaf in found.items()} != {
            name: leaf.shape for name, leaf in wanted.items()
        }:
            raise ValueError(
                f"{self._manager.directory} holds another model's training state; use a new "
                "directory"
            )
        read = self._manager.restore(step, args=args)
        leaves = [read["state"][name] for name in wanted]
        return Restored(jax.tree.unflatten(jax.tree.structure(like), leaves), read["data"], step)

    @property
    def best_step(self) -> int | None:
        """Step with the largest accept length, or None if it was never measured."""
        measured = {
            step: metrics[METRIC]
            for step in self._manager.all_steps()
            if (metrics := self._manager.metrics(step)) and metrics[METRIC] != UNMEASURED
        }
        return max(measured, key=lambda step: (measured[step], step), default=None)

    def finish(self) -> None:
        self._manager.wait_until_finished()


def _metric(metrics: dict[str, float]) -> float:
    return metrics[METRIC]


def _named(tree: Any) -> dict[str, Any]:
    """Map leaves by their paths, in the tree's order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
