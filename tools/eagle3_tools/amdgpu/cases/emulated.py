"""A small case of an operation: the tiles of a real shape, few enough programs to be emulated."""

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
from pallas_kernels import gpu
from pallas_kernels.case import Case
from pallas_kernels.self_check import quick

Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class EmulatedCase:
    """What is compiled for an AMD GPU, executed, and compared with two computations of the same.

    case: the small one; `case.run`, traced inside `gpu.assume`, takes that GPU's tiles for `like`.
    like: the case at a real shape, of `all_cases` where they have one, whose tiles it runs.
    tolerance: how far results may lie from reference.py and from the interpreted kernel, and why.
    donate: arguments of `case.run` that it writes in place: pools.
    partly_written: leaves of the result of which a kernel leaves a part as it was, whatever that
    was; `compare` looks at the rest.
    idle_rows: rows of tiles that no expert uses stay unwritten between kernels, which load and drop
    them.
    long: whether it has a real shape, for the long form of the check alone.
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
        """case, at a small shape, with the tiles and under the name of `like`; vary: the example's
        arguments to those that are used."""
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
        """How it is listed."""
        return self.case.name

    def arguments(self, arch: str, seed: int = 0) -> tuple[Any, ...]:
        """Of this GPU's formats, as JAX arrays."""
        with gpu.assume(arch):
            return self.case.example(seed)

    def launches(self, arch: str) -> list[Launch]:
        """Its Pallas kernels on this GPU with their grids and tiles, in order."""
        return launches(self.case, arch)

    def launches_of_real(self, arch: str) -> list[Launch]:
        """Those of `like`."""
        return launches(self.like, arch)

    def interpreted(self, arch: str, arguments: tuple[Any, ...]) -> list[NDArray[Any]]:
        """The leaves of what the kernels give, interpreted, on this GPU's path."""
        return self._leaves(self.case.run, arch, arguments)

    def expected(self, arch: str, arguments: tuple[Any, ...]) -> list[NDArray[Any]]:
        """The leaves of what reference.py gives."""
        return self._leaves(self.case.reference, arch, arguments)

    def _leaves(self, run: Any, arch: str, arguments: tuple[Any, ...]) -> list[NDArray[Any]]:
        given, tree = jax.tree.flatten(arguments)

        # A new function: JAX's caches do not know of the assumed GPU.
        def flat(*leaves: jax.Array) -> list[jax.Array]:
            return jax.tree.leaves(run(*jax.tree.unflatten(tree, leaves)))

        with gpu.assume(arch):
            compiled = jax.jit(flat).lower(*given).compile(compiler_options=quick.OPTIONS)
            return [np.asarray(leaf) for leaf in compiled(*given)]
