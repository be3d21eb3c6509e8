"""Schema of the benchmark matrix in InferenceX's form, and the jobs it expands to.

The field names are those of InferenceX's single-node master configs (843c6254,
utils/matrix_logic/validation.py). Unknown fields are errors in both. This schema is narrower: no
pipeline parallelism, no split contexts or attention, and every job needs a launcher.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

HERE = Path(__file__).parent
MATRIX = HERE / "configs" / "eagle3-jax.yaml"
LAUNCHERS = HERE / "benchmarks" / "single_node" / "fixed_seq_len"
RANGE_RATIO = 0.8
ROOM = 256
"""Context tokens beyond prompt and answer, for the chat template."""

Count = Annotated[int, Field(gt=0, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    )


class SearchPoint(_Strict):
    """One parallel layout over GPUs, and the concurrencies to run it with."""

    tp: Count
    ep: Count = 1
    dp_attn: Literal[False] = False
    spec_decoding: Literal["mtp", "draft_model", "none"] = "none"
    conc_start: Count | None = None
    conc_end: Count | None = None
    conc_list: list[Count] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ep not in (1, self.tp):
            raise ValueError(f"ep must be 1 or tp = {self.tp}; got {self.ep}")
        first, last = ends = self.conc_start, self.conc_end
        if (self.conc_list is None) == (ends == (None, None)):
            raise ValueError("give conc-list, or conc-start and conc-end")
        if self.conc_list is None and (first is None or last is None or first > last):
            raise ValueError(f"conc-start and conc-end must be a range; got {ends}")
        return self

    @property
    def concurrencies(self) -> list[int]:
        """Powers of two times `conc_start` below `conc_end`, then `conc_end`; or `conc_list`."""
        if self.conc_list is not None:
            return self.conc_list
        assert self.conc_start and self.conc_end
        doubled = (self.conc_start << n for n in range(self.conc_end.bit_length()))
        return [*(c for c in doubled if c < self.conc_end), self.conc_end]


class SequenceLengths(_Strict):
    """Tokens of prompt (`isl`) and answer (`osl`), and the layouts to run."""

    isl: Count
    osl: Count
    search_space: list[SearchPoint] = Field(min_length=1)


class Scenarios(_Strict):
    """InferenceX's scenarios; only fixed lengths are supported."""

    fixed_seq_len: list[SequenceLengths] = Field(min_length=1)


class Entry(_Strict):
    """One model on one kind of machine."""

    image: str
    model: str
    model_prefix: str
    runner: Literal["mi355x"]
    precision: str
    framework: Literal["jax"]
    multinode: Literal[False]
    disagg: Literal[False] = False
    scenarios: Scenarios


@dataclass(frozen=True)
class Job:
    """One run: its launcher and the environment variables that the launcher reads."""

    launcher: Path
    variables: Mapping[str, str]


def read_matrix(path: Path = MATRIX) -> dict[str, Entry]:
    """Read the entries by key; raise ValueError, naming the place, if the schema is violated."""
    try:
        return TypeAdapter(dict[str, Entry]).validate_python(yaml.safe_load(path.read_text()))
    except (ValidationError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def jobs(key: str, entry: Entry) -> Iterator[Job]:
    """Yield every run of an entry; raise ValueError for a run without a launcher."""
    for lengths in entry.scenarios.fixed_seq_len:
        for point in lengths.search_space:
            launcher = LAUNCHERS / _launcher_name(entry, point)
            if not launcher.is_file():
                raise ValueError(f"{key}: there is no launcher {launcher.name}")
            for concurrency in point.concurrencies:
                yield Job(launcher, _variables(entry, lengths, point, concurrency))


def _launcher_name(entry: Entry, point: SearchPoint) -> str:
    """Return the name that InferenceX's runners expect; only `mtp` has a suffix there."""
    suffix = "_mtp" if point.spec_decoding == "mtp" else ""
    stem = f"{entry.model_prefix}_{entry.precision}_{entry.runner}_{entry.framework}"
    return f"{stem}{suffix}.sh"


def _variables(
    entry: Entry, lengths: SequenceLengths, point: SearchPoint, concurrency: int
) -> dict[str, str]:
    name = f"{entry.model_prefix}_{lengths.isl // 1024}k{lengths.osl // 1024}k"
    values = {
        "MODEL": entry.model,
        "MODEL_PREFIX": entry.model_prefix,
        "EXP_NAME": name,
        "IMAGE": entry.image,
        "RUNNER_TYPE": entry.runner,
        "FRAMEWORK": entry.framework,
        "PRECISION": entry.precision,
        "SPEC_DECODING": point.spec_decoding,
        "TP": point.tp,
        "EP_SIZE": point.ep,
        "DP_ATTENTION": "false",
        "DISAGG": "false",
        "CONC": concurrency,
        "ISL": lengths.isl,
        "OSL": lengths.osl,
        "MAX_MODEL_LEN": lengths.isl + lengths.osl + ROOM,
        "RANDOM_RANGE_RATIO": RANGE_RATIO,
        "RESULT_FILENAME": f"{name}_{point.spec_decoding}_tp{point.tp}_conc{concurrency}",
    }
    return {key: str(value) for key, value in values.items()}
