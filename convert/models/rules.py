"""Rules between checkpoint tensors and parameters, which together form a table of weights.

A rule's names are templates such as `layers.{layer}.mlp.experts.{expert}.up_proj.weight`. The same
rule reads a weight and writes it back. A weight is a plain tensor or a quantised matrix
(`convert.published.weights`); rules do not distinguish them. `convert.published.plan` matches a
table with a checkpoint.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from convert.files.box import Box

FLOATS = ("F32", "BF16", "F16")

WhenQuantized = Literal["keep", "dequantize", "refuse"]
"""Treatment of a quantised matrix: keep it, convert it to floats, or raise an error."""


@dataclass(frozen=True)
class Layout:
    """Arrangement of one checkpoint tensor in our parameters; this one keeps the axes.

    `load` and `save` return views. `tensor_shape` is the shape that `save` returns; `tensor_box`
    maps a box of a parameter to a box of the tensor. `row_axis` is the parameter's axis (0 or -1)
    of the tensor's rows, None if they cannot be arranged in slabs. With `read_whole`, all of the
    tensor is read and then cut, because boxes do not correspond.
    """

    quantized: WhenQuantized = "refuse"
    row_axis: int | None = 0
    read_whole: bool = False

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        return (tensor,)

    def save(self, *parts: np.ndarray) -> np.ndarray:
        return parts[0]

    def tensor_shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        return parts[0]

    def tensor_box(self, box: Box) -> Box:
        return box


@dataclass(frozen=True)
class Transposed(Layout):
    """Transposition: torch stores [out, in], our float kernels are [in, out]."""

    quantized: WhenQuantized = "keep"
    row_axis: int | None = -1

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        return (tensor.T,)

    def save(self, *parts: np.ndarray) -> np.ndarray:
        return parts[0].T

    def tensor_shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        return parts[0][::-1]

    def tensor_box(self, box: Box) -> Box:
        return box[::-1]


AS_IS = Layout()
TRANSPOSED = Transposed()
TRANSPOSED_FLOATS = Transposed("refuse")


@dataclass(frozen=True)
class Rule:
    """One line of a table: the weights that it matches and the parameters that they fill.

    `paths` are parameters, one a part of the layout; a trailing `[{expert}]` is one row of a
    stacked parameter. Without paths the weight is dropped, for the reason `why`. The file may use
    `dtypes`; `saved` is the dtype that is written, None for the requested one. A rule with `above`
    takes precedence over other matches.
    """

    name: str
    paths: tuple[str, ...] = ()
    layout: Layout = AS_IS
    why: str = ""
    dtypes: tuple[str, ...] = FLOATS
    saved: str | None = None
    above: bool = False


def norm_rule(name: str) -> Rule:
    """Return the rule of a norm's `weight`, which keeps its name."""
    return Rule(f"{name}.weight", (f"{name}.weight",))


def projection_rule(name: str) -> Rule:
    """Return the rule of a linear layer's `weight`, our `kernel`."""
    return Rule(f"{name}.weight", (f"{name}.kernel",), TRANSPOSED)


def expert_rule(published: str, ours: str) -> Rule:
    """Return the rule of one expert's matrix, a row of a stack; `published` contains `{expert}`."""
    return Rule(f"{published}.weight", (f"{ours}[{{expert}}]",), TRANSPOSED)


class RuleTable:
    """Rules indexed by the shape of their names, so that matching 200,000 tensors is fast.

    A placeholder matches a number without leading zeros, `{rest}` matches anything.
    """

    def __init__(self, rules: Iterable[Rule]):
        self._by_shape: defaultdict[str, list[tuple[Rule, list[str]]]] = defaultdict(list)
        self._by_prefix: list[tuple[str, Rule]] = []
        for rule in rules:
            if rule.name.endswith("{rest}"):
                self._by_prefix.append((rule.name.removesuffix("{rest}"), rule))
            else:
                shape = _PLACEHOLDER.sub("#", rule.name)
                self._by_shape[shape].append((rule, _PLACEHOLDER.findall(rule.name)))

    def match(self, name: str) -> list[tuple[Rule, dict[str, str]]]:
        """Return all matching rules, or only the one with `above`, with placeholder values."""
        numbers = _NUMBER.findall(name)
        exact = self._by_shape.get(_NUMBER.sub("#", name), ())
        found = [(rule, dict(zip(names, numbers, strict=True))) for rule, names in exact]
        found += [(r, {}) for prefix, r in self._by_prefix if name.startswith(prefix)]
        return [match for match in found if match[0].above] or found


_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(r"(?:(?<=\.)|^)(?:0|[1-9][0-9]*)(?=\.|$)")


def filled(
    rules: Iterable[Rule], parameters: Iterable[str]
) -> Iterator[tuple[Rule, str, dict[str, str]]]:
    """Yield every rule with each parameter that matches its first path, and placeholder values."""
    names = list(parameters)
    for rule in rules:
        if rule.paths:
            escaped = re.escape(split_row(rule.paths[0])[1]).replace(r"\{", "{").replace(r"\}", "}")
            pattern = re.compile(_PLACEHOLDER.sub(r"(?P<\1>0|[1-9][0-9]*)", escaped))
            matches = ((path, pattern.fullmatch(path)) for path in names)
            yield from ((rule, path, match.groupdict()) for path, match in matches if match)


def split_row(template: str) -> tuple[str | None, str]:
    """Split `experts.up_proj[{expert}]` into ("expert", "experts.up_proj")."""
    found = re.fullmatch(r"(.*)\[\{(\w+)\}\]", template)
    return (found[2], found[1]) if found else (None, template)
