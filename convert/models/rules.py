"""Weights as a table: rules between checkpoint tensors and parameters.

A rule's names are templates such as `layers.{layer}.mlp.experts.{expert}.up_proj.weight`; the same
rule reads a weight and writes it back. A weight is a tensor or a quantised matrix
(`convert.published.weights`); rules don't say which. `convert.published.plan` matches a table with
a checkpoint.
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
"""What becomes of a quantised matrix: kept as it is, turned into floats first, or an error."""


@dataclass(frozen=True)
class Layout:
    """How one checkpoint tensor is arranged in our parameters, and back; views, not copies. This
    one has the same axes on both sides.

    `tensor_shape` is the shape of what `save` would give, `tensor_box` where in the tensor a box of
    a parameter comes from. row_axis: the parameter's axis along which the tensor's rows lie, 0 or
    -1, if they can be arranged some at a time. read_whole: a box of a parameter is no box of the
    tensor, which is read and then cut.
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
    """torch keeps [out, in], our float kernels [in, out]."""

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
    """One line of a table: which weights it matches and which parameters they fill.

    `paths` are our parameters, one a part of the layout; a trailing `[{expert}]` is one row of a
    stacked parameter. No paths: the weight is dropped, and `why` says so. `dtypes` are those the
    file may use; `saved` is the one it is written in (None: the dtype asked for).
    `above`: it is meant where others match too.
    """

    name: str
    paths: tuple[str, ...] = ()
    layout: Layout = AS_IS
    why: str = ""
    dtypes: tuple[str, ...] = FLOATS
    saved: str | None = None
    above: bool = False


def norm_rule(name: str) -> Rule:
    """A norm's `weight` under the same name."""
    return Rule(f"{name}.weight", (f"{name}.weight",))


def projection_rule(name: str) -> Rule:
    """A linear layer's `weight` as its `kernel`."""
    return Rule(f"{name}.weight", (f"{name}.kernel",), TRANSPOSED)


def expert_rule(published: str, ours: str) -> Rule:
    """One expert's matrix, which is a row of the stack; `published` has a place for `{expert}`."""
    return Rule(f"{published}.weight", (f"{ours}[{{expert}}]",), TRANSPOSED)


class RuleTable:
    """Rules by the shape of their names, so that 200,000 tensors find theirs at once.

    A placeholder stands for a number without leading zeros, `{rest}` for anything.
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
        """Every rule that matches, with the values of its placeholders; where one stands above the
        others, it alone."""
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
    """Every rule with each parameter that its first path stands for, and what stands there for
    the placeholders."""
    names = list(parameters)
    for rule in rules:
        if rule.paths:
            escaped = re.escape(split_row(rule.paths[0])[1]).replace(r"\{", "{").replace(r"\}", "}")
            pattern = re.compile(_PLACEHOLDER.sub(r"(?P<\1>0|[1-9][0-9]*)", escaped))
            matches = ((path, pattern.fullmatch(path)) for path in names)
            yield from ((rule, path, match.groupdict()) for path, match in matches if match)


def split_row(template: str) -> tuple[str | None, str]:
    """`experts.up_proj[{expert}]` -> ("expert", "experts.up_proj")."""
    found = re.fullmatch(r"(.*)\[\{(\w+)\}\]", template)
    return (found[2], found[1]) if found else (None, template)
