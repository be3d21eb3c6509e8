"""A checkpoint held against a model: which weights fill which parameter, from headers alone.

A plan exists only if every tensor matches exactly one rule and every parameter is filled exactly
once; otherwise one error lists all that does not fit. Nothing is read before that.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import jax.numpy as jnp
import numpy as np

from convert.forms import Form
from convert.problems import listed
from convert.rules import Layout, Rule, RuleTable, split_row
from convert.safetensors_files import DTYPES, Checkpoint
from convert.slabs import read_rows, row_slabs
from convert.weights import PartReader, Weight
from pallas_kernels import QuantizedArray, dequantize

_ROWS_NAMED = 8
"""Missing rows that an error names."""


@dataclass(frozen=True)
class Source:
    """One weight's part of one parameter; `row` is set when the parameter is stacked."""

    weight: Weight
    layout: Layout
    part: int
    row: int | None

    @property
    def kept(self) -> Form | None:
        """The quantised form the parameter takes over."""
        return self.weight.form if self.layout.quantized == "keep" else None


@dataclass(frozen=True)
class Plan:
    """What fills each parameter, and why each other weight is left out.

    sources: parameter -> its sources. rules: weight -> the rule it matched. dropped: weight -> why.
    """

    sources: dict[str, list[Source]]
    rules: dict[str, Rule]
    dropped: dict[str, str]

    @property
    def forms(self) -> dict[str, Form]:
        """Parameters that stay quantised, and how."""
        return {path: form for path, found in self.sources.items() if (form := found[0].kept)}


def make_plan(
    checkpoint: Checkpoint,
    weights: Sequence[Weight],
    rules: Sequence[Rule],
    parameters: Mapping[str, tuple[int, ...]],
    *,
    canonical: Callable[[str], str] = lambda name: name,
    misfits: Sequence[str] = (),
) -> Plan:
    """Matches weights to parameter shapes.

    `canonical` turns a dialect's name into the table's; `misfits` are those already found. Raises
    one ValueError with all: 0 or 2 rules, a parameter missing or filled twice, a wrong shape,
    dtype or form.
    """
    table, found = RuleTable(rules), list(misfits)
    sources: defaultdict[str, list[Source]] = defaultdict(list)
    matched: dict[str, Rule] = {}
    dropped: dict[str, str] = {}
    for weight in weights:
        matches = table.match(canonical(weight.name))
        if len(matches) != 1:
            names = [rule.name for rule, _ in matches]
            found.append(f"{weight.name}: matched by {len(matches)} rules {names}")
            continue
        rule, values = matches[0]
        matched[weight.name] = rule
        if not rule.paths:
            dropped[weight.name] = rule.why
            continue
        own = list(_sources(weight, rule, values))
        found += _weight_misfits(weight, rule, own, parameters)
        for path, source in own:
            sources[path].append(source)
    # A weight of no known form would be reported once more, as a missing one.
    for path, shape in () if misfits else parameters.items():
        found += _parameter_misfits(path, shape, sources.get(path, []))
    if found:
        raise ValueError(f"{checkpoint.directory} does not fit the model:{listed(found)}")
    return Plan(dict(sources), matched, dropped)


def read_floats(
    checkpoint: Checkpoint, sources: Sequence[Source], shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Reads one float (or integer) parameter in `dtype`, in memory of its own."""
    out = np.empty(shape, dtype)
    for source in sources:
        _copy(checkpoint, source, out if source.row is None else out[source.row, ...])
    return out


def _copy(checkpoint: Checkpoint, source: Source, out: np.ndarray) -> None:
    """Fills a parameter or its row, a slab at a time: Kimi's head is 2 GiB, twice would be much."""
    layout, info = source.layout, source.weight.tensor
    if source.weight.form is not None or layout.row_axis is None or not info.shape:
        out[...] = layout.load(_read_plain(checkpoint, source.weight))[source.part]
        return
    for rows in row_slabs(info.shape[0], math.prod(info.shape[1:])):
        where = rows if layout.row_axis == 0 else (..., rows)
        out[where] = layout.load(read_rows(info, rows))[source.part]


def read_kept(checkpoint: Checkpoint, sources: Sequence[Source], which: str) -> np.ndarray:
    """Reads the "values" or the "scale" of a parameter that stays quantised, stacked by row.

    Raises ValueError naming the weight when what it holds cannot be right.
    """
    if sources[0].row is None:
        return _read_part(checkpoint, sources[0].weight, which)
    out: np.ndarray | None = None
    for source in sources:
        part = _read_part(checkpoint, source.weight, which)
        if out is None:
            out = np.empty((len(sources), *part.shape), part.dtype)
        out[source.row] = part
    assert out is not None, "a stacked parameter has rows"
    return out


def file_dtype(sources: Sequence[Source]) -> np.dtype:
    """The dtype in which a float parameter loses nothing: the file's, float32 where they differ."""
    dtypes = {DTYPES[source.weight.tensor.dtype] for source in sources}
    quantized = any(source.weight.form for source in sources)
    return np.dtype(np.float32) if quantized or len(dtypes) > 1 else dtypes.pop()


def _read_plain(checkpoint: Checkpoint, weight: Weight) -> np.ndarray:
    if weight.form is None:
        return checkpoint.read(weight.tensor.name)
    values, scale = (_read_part(checkpoint, weight, which) for which in ("values", "scale"))
    quantized = QuantizedArray(jnp.asarray(values), jnp.asarray(scale), weight.form.format())
    return np.asarray(dequantize(quantized))


def _read_part(checkpoint: Checkpoint, weight: Weight, which: str) -> np.ndarray:
    assert weight.form is not None, "only quantised weights have parts"
    read = weight.form.values if which == "values" else weight.form.scale
    try:
        return read(PartReader(checkpoint, weight.parts))
    except ValueError as error:
        raise ValueError(f"{checkpoint.directory}: {weight.name}: {error}") from error


def _sources(weight: Weight, rule: Rule, values: Mapping[str, str]) -> Iterator[tuple[str, Source]]:
    for part, template in enumerate(rule.paths):
        stacked, path = split_row(template)
        row = int(values[stacked]) if stacked else None
        yield path.format(**values), Source(weight, rule.layout, part, row)


def _weight_misfits(
    weight: Weight,
    rule: Rule,
    sources: Sequence[tuple[str, Source]],
    parameters: Mapping[str, tuple[int, ...]],
) -> list[str]:
    """Checks form, dtype and shape."""
    misfits = []
    if weight.form is None and weight.tensor.dtype not in rule.dtypes:
        misfits.append(
            f"{weight.name}: dtype must be one of {rule.dtypes}, got {weight.tensor.dtype}"
        )
    if weight.form is not None and rule.layout.quantized == "refuse":
        misfits.append(f"{weight.name}: cannot be quantised, got {weight.form.label}")
    shapes = []
    for path, source in sources:
        if path not in parameters:
            return [*misfits, f"{weight.name}: the model has no parameter {path}"]
        shape = parameters[path]
        if source.row is not None and source.row >= shape[0]:
            return [*misfits, f"{weight.name}: {path} has only {shape[0]} rows"]
        shapes.append(shape if source.row is None else shape[1:])
    expected = rule.layout.tensor_shape(*shapes)
    if weight.shape != expected:
        misfits.append(f"{weight.name}: expected shape {expected}, got {weight.shape}")
    return misfits


def _parameter_misfits(path: str, shape: tuple[int, ...], sources: list[Source]) -> list[str]:
    if not sources:
        return [f"{path}: no tensor in the checkpoint"]
    names: defaultdict[int | None, list[str]] = defaultdict(list)
    for source in sources:
        names[source.row].append(source.weight.name)
    misfits = [
        f"{path if row is None else f'{path}[{row}]'}: filled more than once, by {', '.join(same)}"
        for row, same in names.items()
        if len(same) > 1
    ]
    rows = 0 if None in names else shape[0]
    missing = rows - sum(row is not None and row < rows for row in names)
    if missing:
        first = list(islice((row for row in range(rows) if row not in names), _ROWS_NAMED))
        others = f" and {missing - len(first)} others" if missing > len(first) else ""
        misfits.append(f"{path}: no tensor for rows {first}{others}")
    forms = {source.kept.label if source.kept else "floats" for source in sources}
    mixed = [f"{path}: its rows differ in form: {sorted(forms)}"] if len(forms) > 1 else []
    return misfits + mixed
