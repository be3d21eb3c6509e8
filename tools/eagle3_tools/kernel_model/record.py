"""Recorded facts of the named cases: `records/<arch>.json`, one line for each case.

`python -m eagle3_tools.aot --record` writes them, for use on machines without the compiler. Another
version of JAX writes into `records/<version>/<arch>.json`, whose cases replace those of the first
record where that version is installed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eagle3_tools.kernel_model.facts import Chain, KernelFacts, Load, LoopFacts, Work
from eagle3_tools.kernel_model.gpus import BY_ARCH, ModelGpu
from eagle3_tools.kernel_model.predict import Call, Prediction, predict

FOLDER = Path(__file__).parent / "records"


@dataclass(frozen=True, eq=False)
class CaseFacts:
    """A case and its kernels in launch order. floor: bytes that the case must move."""

    name: str
    floor: float
    touched: float
    live: float
    kernels: tuple[KernelFacts, ...]

    def predictions(self, gpu: ModelGpu) -> tuple[Prediction, ...]:
        return _predictions(self, gpu)

    def seconds(self, gpu: ModelGpu) -> float:
        """Return the seconds of all kernels, without their launches."""
        return sum(found.seconds for found in self.predictions(gpu))

    def share(self, gpu: ModelGpu) -> float:
        """Return the fraction of the floor."""
        return self.floor / gpu.hbm / self.seconds(gpu)


@cache
def _predictions(case: CaseFacts, gpu: ModelGpu) -> tuple[Prediction, ...]:
    call = Call(case.touched, case.live)
    return tuple(predict(kernel, gpu, call) for kernel in case.kernels)


def path_of(arch: str, folder: Path = FOLDER) -> Path:
    return folder / f"{arch}.json"


def recorded_with(arch: str, folder: Path = FOLDER) -> str | None:
    """Return the version of JAX that compiled an architecture's recorded code."""
    path = path_of(arch, folder)
    return json.loads(path.read_text(encoding="utf-8"))["jax"] if path.exists() else None


@cache
def recorded(arch: str, folder: Path = FOLDER) -> Mapping[str, CaseFacts]:
    """Return case name -> facts; empty if there is no record."""
    found: dict[str, CaseFacts] = {}
    for path in (path_of(arch, folder), path_of(arch, folder / version("jax"))):
        if path.exists():
            lines = json.loads(path.read_text(encoding="utf-8"))
            found |= {name: read_case(name, fields) for name, fields in lines["cases"].items()}
    return found


def write_record(arch: str, cases: Iterable[CaseFacts], folder: Path = FOLDER) -> Path:
    """Write these cases, replacing their earlier records and keeping the others. The record of
    another version of JAX stays as it is."""
    if recorded_with(arch, folder) not in (None, version("jax")):
        folder /= version("jax")
    known = {**recorded(arch, folder), **{case.name: case for case in cases}}
    lines = [f"{json.dumps(name)}: {_text(known[name])}" for name in sorted(known)]
    path = path_of(arch, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"arch": arch, "gpu": BY_ARCH[arch].name, "jax": version("jax")})[:-1]
    path.write_text(f'{head}, "cases": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    recorded.cache_clear()
    return path


def _text(case: CaseFacts) -> str:
    fields = asdict(case)
    del fields["name"]
    return json.dumps(_rounded(fields), separators=(",", ":"))


def _rounded(value: Any) -> Any:
    """Round numbers to a millionth: sums of a timeline differ in their last bits."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value


def read_case(name: str, fields: Mapping[str, Any]) -> CaseFacts:
    """Return the case of a record's line."""
    kernels = tuple(_kernel(kernel) for kernel in fields["kernels"])
    floor, touched, live = (float(fields[key]) for key in ("floor", "touched", "live"))
    return CaseFacts(name, floor, touched, live, kernels)


def _kernel(fields: dict[str, Any]) -> KernelFacts:
    return KernelFacts(
        **{
            **fields,
            "grid": tuple(fields["grid"]),
            "arrays": {int(place): size for place, size in fields["arrays"].items()},
            "loops": tuple(LoopFacts(_work(x["work"]), x["trips"]) for x in fields["loops"]),
            "outside": _work(fields["outside"]),
        }
    )


def _work(fields: dict[str, Any]) -> Work:
    loads = tuple(Load(**load) for load in fields["loads"])
    return Work(**{**fields, "loads": loads, "chain": Chain(**fields["chain"])})
