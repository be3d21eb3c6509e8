"""The recorded facts of the named cases: `records/<arch>.json`, a line for each case.

Written by `python -m eagle3_tools.aot --record`, which has the compiler, for those who have not.
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
    """A case and its kernels in the order of their launches; floor: bytes it must move."""

    name: str
    floor: float
    touched: float
    live: float
    kernels: tuple[KernelFacts, ...]

    def predictions(self, gpu: ModelGpu) -> tuple[Prediction, ...]:
        """Of each kernel."""
        return _predictions(self, gpu)

    def seconds(self, gpu: ModelGpu) -> float:
        """Of all kernels, without their launches."""
        return sum(found.seconds for found in self.predictions(gpu))

    def share(self, gpu: ModelGpu) -> float:
        """Of the floor."""
        return self.floor / gpu.hbm / self.seconds(gpu)


@cache
def _predictions(case: CaseFacts, gpu: ModelGpu) -> tuple[Prediction, ...]:
    call = Call(case.touched, case.live)
    return tuple(predict(kernel, gpu, call) for kernel in case.kernels)


def path_of(arch: str, folder: Path = FOLDER) -> Path:
    """Where an architecture's record is."""
    return folder / f"{arch}.json"


def recorded_with(arch: str, folder: Path = FOLDER) -> str | None:
    """The version of JAX whose compiler made an architecture's recorded code."""
    path = path_of(arch, folder)
    return json.loads(path.read_text(encoding="utf-8"))["jax"] if path.exists() else None


@cache
def recorded(arch: str, folder: Path = FOLDER) -> Mapping[str, CaseFacts]:
    """Case -> its facts; empty where there is no record."""
    path = path_of(arch, folder)
    if not path.exists():
        return {}
    lines = json.loads(path.read_text(encoding="utf-8"))
    return {name: _case(name, fields) for name, fields in lines["cases"].items()}


def write_record(arch: str, cases: Iterable[CaseFacts], folder: Path = FOLDER) -> Path:
    """Writes these in the place of what is recorded of them; others stay."""
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
    """Numbers to a millionth: what a timeline sums up differs in the last bits."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value


def _case(name: str, fields: dict[str, Any]) -> CaseFacts:
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
