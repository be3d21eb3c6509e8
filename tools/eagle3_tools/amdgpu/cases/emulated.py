"""A small case of an operation with the tiles of a real shape, small enough to emulate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from eagle3_tools.amdgpu.cases.errors import largest_error
from eagle3_tools.amdgpu.cases.launches import Launch, launches, with_tiles_of
from eagle3_tools.amdgpu.cases.tolerances import Tolerance
from eagle3_tools.amdgpu.cases.variety import unlike_scales
from eagle3_tools.kernel_cases.case import Case
from pallas_kernels import gpu

Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class EmulatedCase:
    """A case to compile for an AMD GPU, emulate, and compare with two other computations.

    Attributes:
        case: The small case. `case.run`, traced in `gpu.assume`, uses that GPU's tiles for `like`.
        like: The case with a real shape whose tiles are used; from `all_cases` if it has one.
        tolerance: Largest errors against reference.py and the interpreted kernel.
        donate: Arguments of `case.run` that it writes in place: pools.
        partly_written: Result leaves that a kernel writes in part; `compare` ignores the rest.
        idle_rows: Rows of tiles without an expert stay unwritten; kernels load and discard them.
        long: The case has a real shape and is run in the long form of the check only.
    """

    case: Case
    like: Case
    tolerance: Tolerance
    donate: tuple[int, ...] = ()
    partly_written: frozenset[int] = frozenset()
    compare: Callable[[Arrays, Arrays], float] = largest_error
    idle_rows: bool = False
    long: bool = False

    @classmethod
    def small(
        cls,
        case: Case,
        like: Case,
        tolerance: Tolerance,
        vary: Callable[..., tuple[Any, ...]] = lambda *arguments: arguments,
        **fields: Any,
    ) -> "EmulatedCase":
        """Give a small `case` the tiles and name of `like`; `vary` changes its example."""
        made = replace(
            case,
            shape=f"small {like.shape}",
            variant=like.variant,
            run=with_tiles_of(like, case.run),
            example=lambda seed: unlike_scales(vary(*case.example(seed)), seed),
        )
        return cls(made, like, tolerance, **fields)

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.case.name

    def arguments(self, arch: str) -> tuple[Any, ...]:
        """Return example arguments in this GPU's formats, as JAX arrays."""
        with gpu.assume(arch):
            return self.case.example(0)

    def launches(self, arch: str) -> list[Launch]:
        """Return the Pallas kernels it launches on this GPU, in order."""
        return launches(self.case, arch)

    def launches_of_real(self, arch: str) -> list[Launch]:
        """Return the kernels that `like` launches on this GPU."""
        return launches(self.like, arch)

    def interpreted(self, arch: str, arguments: tuple[Any, ...]) -> list[NDArray[Any]]:
        """Return the result leaves of the interpreted kernels on this GPU's path."""
        return self._leaves(self.case.run, arch, arguments)

    def expected(self, arch: str, arguments: tuple[Any, ...]) -> list[NDArray[Any]]:
        """Return the result leaves of reference.py."""
        return self._leaves(self.case.reference, arch, arguments)

    def _leaves(self, run: Any, arch: str, arguments: tuple[Any, ...]) -> list[NDArray[Any]]:
        given, tree = jax.tree.flatten(arguments)

        # A new function each time, because JAX's caches do not distinguish the assumed GPU.
        def flat(*leaves: jax.Array) -> list[jax.Array]:
            return jax.tree.leaves(run(*jax.tree.unflatten(tree, leaves)))

        with gpu.assume(arch):
            compiled = jax.jit(flat).lower(*given).compile(compiler_options=gpu.CPU_OPTIONS)
            return [np.asarray(leaf) for leaf in compiled(*given)]
