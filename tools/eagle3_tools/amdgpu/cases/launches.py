"""Which kernels a case launches, with which grid and tiles; and a small case with a real one's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from pallas_kernels import gpu, tuning
from pallas_kernels.all_cases import all_cases
from pallas_kernels.case import Case

PRODUCTS = ("dot_general", "dot_mxfp4")
MOVES = ("masked_load", "masked_swap")


@dataclass(frozen=True)
class Launch:
    """A Pallas kernel's launch.

    grid: programs, each one workgroup of `warps` waves. products: operands' shapes of the matrix
    products in it; moves: shapes and dtypes of what it loads and stores at a time.
    """

    name: str
    grid: tuple[int, ...]
    warps: int
    stages: int
    products: frozenset[str]
    moves: frozenset[str]

    @property
    def tiles(self) -> tuple[Any, ...]:
        """All but how often they run."""
        return self.name, self.warps, self.stages, self.products, self.moves


class EveryKey(dict[tuple[str, str], dict[str, int]]):
    """Tiles on trial by operation, whatever shape the choice is for."""

    def get(self, choice: tuple[str, str], default: Any = None) -> Any:
        return super().get((choice[0], ""), default)


@cache
def _by_name() -> dict[str, Case]:
    """Made once: it takes half a second, and every process of a test run reads all cases."""
    return {case.name: case for case in all_cases()}


def named(name: str) -> Case:
    """The case of `all_cases` of this name. Raises ValueError where there is none."""
    if name not in _by_name():
        raise ValueError(f"expected the name of a case of all_cases, got {name!r}")
    return _by_name()[name]


def with_tiles_of(like: Case, run: Callable[..., Any]) -> Callable[..., Any]:
    """run, which takes the tiles that `like` has on the GPU that it is traced for."""

    @cache
    def tiles(arch: str) -> EveryKey:
        return tiles_of(like, arch)

    def run_small(*arguments: Any) -> Any:
        with tuning.trying(tiles(gpu.current().arch)):
            return run(*arguments)

    return run_small


def tiles_of(like: Case, arch: str) -> EveryKey:
    """(operation, "") -> tiles that this case chooses, measured ones if there are any."""
    measured = {
        (operation, key): entry["tiles"]
        for operation, entries in tuning.measured(arch).items()
        for key, entry in entries.items()
    }
    with tuning.trying(measured) as asked:
        launches(like, arch)
    return EveryKey({(operation, ""): tiles for (operation, _), tiles in asked.items()})


def launches(case: Case, arch: str) -> list[Launch]:
    """Of one call on this GPU, in the order of the program."""
    with gpu.assume(arch):
        traced = jax.make_jaxpr(lambda: case.run(*case.example(0)))()
    return [
        _launch(equation.params)
        for equation in _equations(traced.jaxpr)
        if equation.primitive.name == "pallas_call"
    ]


def _launch(params: dict[str, Any]) -> Launch:
    inside = list(_equations(params["jaxpr"]))
    return Launch(
        params["name"],
        params["grid_mapping"].grid,
        params["compiler_params"].num_warps,
        params["compiler_params"].num_stages,
        frozenset(_shapes(e.invars) for e in inside if e.primitive.name in PRODUCTS),
        frozenset(_shapes(e.outvars) for e in inside if e.primitive.name in MOVES),
    )


def _shapes(variables: list[Any]) -> str:
    return " x ".join(variable.aval.str_short(short_dtypes=True) for variable in variables)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Those of loops and branches too; not those inside of a kernel's call."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "pallas_call":
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
                if _is_jaxpr(inner):
                    yield from _equations(getattr(inner, "jaxpr", inner))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
