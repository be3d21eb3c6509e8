"""Match a checkpoint's weights to a model's parameters, from headers alone.

A plan exists only if every tensor matches exactly one rule and every parameter is filled exactly
once. Otherwise one error lists everything that does not fit, before any tensor is read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from convert.files.safetensors_files import listed
from convert.models.rules import Layout, Rule, RuleTable, split_row
from convert.published.directory import Published
from convert.published.forms import Form
from convert.published.quantization_config import contradictions
from convert.published.weights import Weight

_ROWS_NAMED = 8
"""Maximum number of missing rows that an error names."""


@dataclass(frozen=True)
class Source:
    """The contribution of one weight to one parameter; `row` is set if the parameter is stacked."""

    weight: Weight
    layout: Layout
    part: int
    row: int | None

    @property
    def kept(self) -> Form | None:
        """Form in which the parameter stays quantised, or None."""
        return self.weight.form if self.layout.quantized == "keep" else None


@dataclass(frozen=True)
class LoadPlan:
    """The sources of each parameter, and the reason why each other weight is dropped.

    `sources` is by parameter. `rules` (the rule that it matched) and `dropped` (reason) are by
    weight.
    """

    sources: dict[str, list[Source]]
    rules: dict[str, Rule]
    dropped: dict[str, str]

    @property
    def forms(self) -> dict[str, Form]:
        """Forms of the parameters that stay quantised."""
        return {path: form for path, found in self.sources.items() if (form := found[0].kept)}


def make_plan(
    published: Published,
    rules: Sequence[Rule],
    parameters: Mapping[str, tuple[int, ...]],
    canonical: Callable[[str], str],
) -> LoadPlan:
    """Match weights to parameter shapes; `canonical` maps a tensor's name to the table's.

    Raises one ValueError with all weights of 0 or 2 rules, parameters missing or filled twice, and
    wrong shapes, dtypes or forms; or else with all contradictions of config.json.
    """
    table, found = RuleTable(rules), list(published.misfits)
    sources: defaultdict[str, list[Source]] = defaultdict(list)
    matched: dict[str, Rule] = {}
    dropped: dict[str, str] = {}
    for weight in published.weights:
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
    # Skip after a weight of no known form, which would also be reported as missing.
    for path, shape in () if published.misfits else parameters.items():
        found += _parameter_misfits(path, shape, sources.get(path, []))
    if found:
        raise ValueError(f"{published.directory} does not fit the model:{listed(found)}")
    wrong = list(contradictions(published.quantization, published.weights, matched))
    if wrong:
        raise ValueError(f"{published.directory}: config.json and tensors disagree:{listed(wrong)}")
    return LoadPlan(dict(sources), matched, dropped)


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
