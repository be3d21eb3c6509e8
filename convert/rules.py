"""Weights as a table: rules between checkpoint tensors and parameters, and the plan they make.

A rule's names are templates such as `layers.{layer}.mlp.experts.{expert}.up_proj.weight`; the same
rule reads a tensor and writes it back. A plan holds only if every tensor matches exactly one rule
and every parameter is filled exactly once; otherwise one error lists all that does not fit.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from convert.safetensors_files import DTYPES, Checkpoint, TensorInfo

FLOATS = ("F32", "BF16", "F16")


class Layout(Protocol):
    """How one checkpoint tensor is arranged in our parameters, and back; views, not copies."""

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]: ...

    def save(self, *parts: np.ndarray) -> np.ndarray: ...


class AsIs:
    """The same axes on both sides."""

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        return (tensor,)

    def save(self, *parts: np.ndarray) -> np.ndarray:
        return parts[0]


class Transposed:
    """torch keeps [out, in], our kernels [in, out]."""

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        return (tensor.T,)

    def save(self, *parts: np.ndarray) -> np.ndarray:
        return parts[0].T


AS_IS = AsIs()
TRANSPOSED = Transposed()


@dataclass(frozen=True)
class Rule:
    """One line of a table: which tensors it matches and which parameters they fill.

    `paths` are our parameters, one a part of the layout; a trailing `[{expert}]` is one row of a
    stacked parameter. No paths: the tensor is dropped, and `why` says so. `dtypes` are those the
    file may use; `saved` is the one it is written in (None: the dtype asked for).
    """

    name: str
    paths: tuple[str, ...] = ()
    layout: Layout = AS_IS
    why: str = ""
    dtypes: tuple[str, ...] = FLOATS
    saved: str | None = None

    def match(self, name: str) -> dict[str, str] | None:
        """The values of the template's placeholders, or None."""
        return _match(self.name, name)


@dataclass(frozen=True)
class Source:
    """One tensor's part of one parameter; `row` is set when the parameter is stacked."""

    tensor: TensorInfo
    layout: Layout
    part: int
    row: int | None


@dataclass(frozen=True)
class Plan:
    """What fills each parameter, and why each other tensor is left out."""

    sources: dict[str, list[Source]]
    dropped: dict[str, str]


def make_plan(
    checkpoint: Checkpoint,
    rules: Sequence[Rule],
    parameters: Mapping[str, tuple[int, ...]],
    *,
    canonical: Callable[[str], str] = lambda name: name,
) -> Plan:
    """Matches checkpoint tensors to parameter shapes, from headers alone.

    `canonical` turns a dialect's tensor name into the table's. Raises one ValueError with every
    misfit: 0 or 2 rules, a parameter missing or filled twice, a wrong shape or dtype.
    """
    sources: defaultdict[str, list[Source]] = defaultdict(list)
    dropped: dict[str, str] = {}
    misfits: list[str] = []
    for name, info in checkpoint.tensors.items():
        matches = [(r, m) for r in rules if (m := r.match(canonical(name))) is not None]
        if len(matches) != 1:
            names = [rule.name for rule, _ in matches]
            misfits.append(f"{name}: matched by {len(matches)} rules {names}")
            continue
        rule, values = matches[0]
        if not rule.paths:
            dropped[name] = rule.why
            continue
        misfits += _tensor_misfits(info, rule, values, parameters)
        for path, source in _sources(info, rule, values):
            sources[path].append(source)
    for path, shape in parameters.items():
        misfits += _parameter_misfits(path, shape, sources.get(path, []))
    if misfits:
        listed = "\n  ".join(misfits)
        raise ValueError(f"{checkpoint.directory} does not fit the model:\n  {listed}")
    return Plan(dict(sources), dropped)


def read_parameter(
    checkpoint: Checkpoint, sources: Sequence[Source], shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Reads one parameter in the run dtype, in memory of its own."""
    out = np.empty(shape, dtype)
    for source in sources:
        part = source.layout.load(checkpoint.read(source.tensor.name))[source.part]
        out[... if source.row is None else source.row] = part
    return out


def saved_tensors(
    rules: Iterable[Rule], parameters: Mapping[str, np.ndarray], dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Parameters back under the table's names, in `dtype` unless the rule fixes another."""
    tensors: dict[str, np.ndarray] = {}
    written: set[str] = set()
    for rule in rules:
        for path in parameters if rule.paths else ():
            stacked, template = _split_row(rule.paths[0])
            if (values := _match(template, path)) is None:
                continue
            paths = [_split_row(part)[1].format(**values) for part in rule.paths]
            parts = [parameters[part] for part in paths]
            written.update(paths)
            target = DTYPES[rule.saved] if rule.saved else dtype
            for row in range(len(parts[0])) if stacked else (None,):
                chosen = parts if row is None else [part[row] for part in parts]
                name = rule.name.format(**values, **({stacked: row} if stacked else {}))
                tensors[name] = np.ascontiguousarray(rule.layout.save(*chosen), target)
    assert written == set(parameters), f"no rule saves {sorted(set(parameters) - written)}"
    return tensors


def _sources(
    info: TensorInfo, rule: Rule, values: Mapping[str, str]
) -> Iterator[tuple[str, Source]]:
    for part, template in enumerate(rule.paths):
        stacked, path = _split_row(template)
        row = int(values[stacked]) if stacked else None
        yield path.format(**values), Source(info, rule.layout, part, row)


def _tensor_misfits(
    info: TensorInfo,
    rule: Rule,
    values: Mapping[str, str],
    parameters: Mapping[str, tuple[int, ...]],
) -> list[str]:
    """Checks dtype and shape by running the layout on arrays that own no memory."""
    misfits = []
    if info.dtype not in rule.dtypes:
        misfits.append(f"{info.name}: dtype must be one of {rule.dtypes}, got {info.dtype}")
    shapes = []
    for path, source in _sources(info, rule, values):
        if path not in parameters:
            return [*misfits, f"{info.name}: the model has no parameter {path}"]
        shape = parameters[path]
        if source.row is not None and source.row >= shape[0]:
            return [*misfits, f"{info.name}: {path} has only {shape[0]} rows"]
        shapes.append(shape if source.row is None else shape[1:])
    expected = rule.layout.save(*map(_placeholder, shapes)).shape
    if info.shape != expected:
        misfits.append(f"{info.name}: expected shape {expected}, got {info.shape}")
    return misfits


def _parameter_misfits(path: str, shape: tuple[int, ...], sources: list[Source]) -> list[str]:
    if not sources:
        return [f"{path}: no tensor in the checkpoint"]
    names: defaultdict[int | None, list[str]] = defaultdict(list)
    for source in sources:
        names[source.row].append(source.tensor.name)
    misfits = [
        f"{path if row is None else f'{path}[{row}]'}: filled more than once, by {', '.join(same)}"
        for row, same in names.items()
        if len(same) > 1
    ]
    missing = [] if None in names else sorted(set(range(shape[0])) - set(names))
    return misfits + ([f"{path}: no tensor for rows {missing}"] if missing else [])


def _placeholder(shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.zeros((), np.bool_), shape)


def _split_row(template: str) -> tuple[str | None, str]:
    """`experts.up_proj[{expert}]` -> ("expert", "experts.up_proj")."""
    found = re.fullmatch(r"(.*)\[\{(\w+)\}\]", template)
    return (found[2], found[1]) if found else (None, template)


def _match(template: str, name: str) -> dict[str, str] | None:
    found = _name_pattern(template).fullmatch(name)
    return found.groupdict() if found else None


@functools.cache
def _name_pattern(template: str) -> re.Pattern[str]:
    """`{layer}` matches a number without leading zeros; `{rest}` matches anything."""
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    wild = escaped.replace("{rest}", ".*")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>0|[1-9][0-9]*)", wild))
