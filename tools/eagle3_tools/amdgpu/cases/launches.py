"""List the kernels that a case launches, and give a small case the tiles of a real one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from eagle3_tools.kernel_cases import cases_by_name
from eagle3_tools.kernel_cases.case import Case
from pallas_kernels import gpu, tuning

PRODUCTS = ("dot_general", "dot_mxfp4")
MOVES = ("masked_load", "masked_swap")


@dataclass(frozen=True)
class Launch:
    """A Pallas kernel's launch: a grid of programs, each a workgroup of `warps` waves.

    `products` has operand shapes of matrix products, `moves` shapes and dtypes of loads and stores.
    """

    name: str
    grid: tuple[int, ...]
    warps: int
    stages: int
    products: frozenset[str]
    moves: frozenset[str]

    @property
    def tiles(self) -> tuple[Any, ...]:
        """Everything except the grid."""
        return self.name, self.warps, self.stages, self.products, self.moves


class EveryKey(dict[tuple[str, str], dict[str, int]]):
    """Tiles on trial by operation; the shape in a key is ignored."""

    def get(self, choice: tuple[str, str], default: Any = None) -> Any:
        return super().get((choice[0], ""), default)


def named(name: str) -> Case:
    """Return the case of `all_cases` with this name; raise ValueError if there is none."""
    if name not in cases_by_name():
        raise ValueError(f"expected the name of a case of all_cases, got {name!r}")
    return cases_by_name()[name]


def with_tiles_of(like: Case, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `run` so that it uses the tiles of `like` on the GPU it is traced for."""

    @cache
    def tiles(arch: str) -> EveryKey:
        return tiles_of(like, arch)

    def run_small(*arguments: Any) -> Any:
        with tuning.trying(tiles(gpu.current().arch)):
            return run(*arguments)

    return run_small


def tiles_of(like: Case, arch: str) -> EveryKey:
    """Map (operation, "") to the tiles that this case uses, measured ones if available."""
    measured = {
        (operation, key): entry["tiles"]
        for operation, entries in tuning.measured(arch).items()
        for key, entry in entries.items()
    }
    with tuning.trying(measured) as asked:
        launches(like, arch)
    return EveryKey({(operation, ""): tiles for (operation, _), tiles in asked.items()})


def launches(case: Case, arch: str) -> list[Launch]:
    """Return the launches of one call on this GPU, in program order."""
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
    """Yield equations, including those in loops and branches but not those in kernels."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "pallas_call":
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
                if _is_jaxpr(inner):
                    yield from _equations(getattr(inner, "jaxpr", inner))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
