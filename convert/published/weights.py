"""Find the weights of a checkpoint, whatever form each is stored in.

Rule tables use names `X.weight`. This module finds the tensors that form one such weight. Their
names and dtypes decide its form, never config.json.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from convert.files.safetensors_files import TensorInfo
from convert.published.forms import FORMS, INT4_AWQ, INT4_LINEAR, PARTS, Form, Parts

Int4OrderChoice = Literal["auto", "linear", "awq"]

_PLAIN_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Weight:
    """One logical tensor: a plain one (`form` is None, one part) or a quantised matrix.

    `name` is the tensor's, or `X.weight` for all parts of X; `parts` is by the last part of names.
    """

    name: str
    parts: Parts
    form: Form | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor, or [out, in] of the quantised matrix."""
        return self.form.shape(self.parts) if self.form else self.tensor.shape

    @property
    def tensor(self) -> TensorInfo:
        """The tensor of a plain weight, or the values of a quantised one."""
        return self.parts[self.form.main] if self.form else next(iter(self.parts.values()))


def find_weights(
    tensors: Iterable[TensorInfo], int4_order: Int4OrderChoice = "auto"
) -> tuple[list[Weight], list[str]]:
    """Group tensors into weights; return them with the errors of tensors that fit no form.

    `int4_order` is the nibble order of Quark's INT4 per channel, which no file states. "auto" is
    AWQ's order if there are zero points, which only exports from memory write, and linear
    otherwise. "linear" with zero points is an error. Raises ValueError for another value.
    """
    if int4_order not in ("auto", "linear", "awq"):
        raise ValueError(f"int4_order must be auto, linear or awq, got {int4_order!r}")
    weights, misfits, shuffled = [], [], []
    for name, parts in parts_by_weight(tensors).items():
        if _is_plain(parts):
            weights.append(Weight(name, parts))
            continue
        form, problems = _form_of(name, parts, int4_order)
        misfits += problems
        if form is INT4_LINEAR and "weight_zero_point" in parts:
            shuffled.append(name)
        if form is not None and not problems:
            weights.append(Weight(name, parts, form))
    if shuffled:
        misfits.append(
            f"{shuffled[0]}: zero points lie beside it and {len(shuffled) - 1} others, as only "
            "exports from memory write them, in AWQ's order; int4_order linear contradicts them, "
            "leave it at auto"
        )
    return weights, misfits


def parts_by_weight(tensors: Iterable[TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
    """Return tensors by name suffix for each weight: lone tensors first, then each `X.weight`."""
    alone: dict[str, dict[str, TensorInfo]] = {}
    weights: defaultdict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for info in tensors:
        module, _, part = info.name.rpartition(".")
        if module and part in PARTS:
            weights[f"{module}.weight"][part] = info
        else:
            alone[info.name] = {part: info}
    return {**alone, **weights}


def assumed_orders(weights: Iterable[Weight], asked: Int4OrderChoice) -> list[str]:
    """Return labels of the INT4 orders that "auto" assumed; the other order would load too."""
    found = {weight.form for weight in weights if weight.form} if asked == "auto" else set()
    return [form.label for form in (INT4_LINEAR, INT4_AWQ) if form in found]


def _is_plain(parts: Parts) -> bool:
    """Return whether a weight is a lone tensor, except a `weight` whose dtype requires scales."""
    if parts.keys() & PARTS:
        return set(parts) == {"weight"} and parts["weight"].dtype in _PLAIN_DTYPES
    return True


def _form_of(name: str, parts: Parts, int4_order: Int4OrderChoice) -> tuple[Form | None, list[str]]:
    """Return the form of these tensors, and the errors in them."""
    awq = int4_order == "awq" or (int4_order == "auto" and "weight_zero_point" in parts)
    known = (*FORMS, INT4_AWQ if awq else INT4_LINEAR)
    candidates = [form for form in known if form.claims(parts)]
    if not candidates:
        listed = ", ".join(f"{part} ({info.dtype})" for part, info in parts.items())
        return None, [f"{name}: no known form of weights has the tensors {listed}"]
    form = next((f for f in candidates if not f.lacks(parts) and not f.surplus(parts)), None)
    if form is not None:
        return form, form.misfits(parts)
    return None, list(_nearest(name, parts, candidates))


def _nearest(name: str, parts: Parts, candidates: list[Form]) -> Iterator[str]:
    """Yield the missing and surplus tensors compared with the closest candidate form."""
    form = min(candidates, key=lambda form: form.distance(parts))
    module = name.removesuffix("weight")
    for part in form.lacks(parts):
        yield f"{module}{part}: missing; {form.label} needs it beside {form.main}"
    for part in form.surplus(parts):
        yield f"{parts[part].name}: {form.label} has no such tensor"
