"""Kernel calls of the model that will be served, with the shapes of one device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from convert.files.safetensors_files import read_json
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.mesh import check_units, make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_tools.plan.compile.compiled_round import round_program
from eagle3_tools.plan.compile.tower import tower_program
from eagle3_tools.plan.data.kimi_k25 import VISION, WeightScheme, abstract_draft, abstract_target
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.self_check import Call, recorded_calls
from pallas_kernels import gpu

PATCHES = 1024
"""Patches of the images in one array: one image of 448 x 448 pixels, or several smaller ones."""
REHEARSED = "gfx950"
"""GPU architecture whose kernels are interpreted on a machine without GPU."""
LAYERS = 3
"""Target layers: dense ones and one with experts; further layers make the same calls."""
AUX_LAYER_IDS = (0, 1, 2)
SIZES = (8, 4, 2, 1)
"""Tensor parallel sizes to try if none is given: the largest that devices and model allow."""
CONFIG = EngineConfig(num_speculative_tokens=3, max_model_len=1024, max_num_seqs=4)
STEPS: tuple[dict[str, Any], ...] = (
    {},
    {"max_num_seqs": 64},
    {"max_model_len": 10240},
    {"prefill_chunk": 512},
)
"""Sizes with different calls: few sequences; many, with the largest tiles; long ones, whose
attention is split; and a long chunk, which has its own operation.
"""
Models = tuple[Target, Eagle3Draft | None]


@dataclass(frozen=True)
class Served:
    """Job that traces rounds and prefills of a pair without weights.

    `target` and `draft` are config.json files or their directories; without a target, Kimi-K2.5 and
    its draft at published widths in every published format. `tensor_parallel_size=None` is the
    largest that fits. `config` is the server's, except for the sizes in STEPS. `every` checks
    operations in the shapes of every step; otherwise each in the first step that calls it, which an
    interpreter can do in minutes. None: true if there is a GPU.
    """

    target: Path | None
    draft: Path | None
    tensor_parallel_size: int | None
    config: EngineConfig = CONFIG
    every: bool | None = None

    def __call__(self) -> tuple[int, list[Call]]:
        """Return the tensor parallel size and the calls of one of its devices.

        Raises ValueError or OSError if a file is unusable or the pair does not divide.
        """
        mesh, pairs = self._laid_out()
        every = jax.default_backend() != "cpu" if self.every is None else self.every
        found: dict[str, Call] = {}
        with assumed_gpu():
            for calls in self._steps(mesh, pairs):
                known = set() if every else {call.operation for call in found.values()}
                found |= {repr(call): call for call in calls if call.operation not in known}
        return mesh.size, list(found.values())

    def _steps(self, mesh: Mesh, pairs: list[Models]) -> Iterator[list[Call]]:
        """Yield the calls of each step for all pairs, then those of the vision tower."""
        for sizes in STEPS:
            batch = sizes.get("max_num_seqs", self.config.max_num_seqs)
            config = replace(self.config, **sizes, batch_buckets=(batch,))
            yield [call for pair in pairs for call in _calls(pair, mesh, config)]
        if vision := self._vision():
            yield recorded_calls(*tower_program(vision, PATCHES))

    def _vision(self) -> VisionConfig | None:
        if self.target is None:
            return VISION
        fields = _read(self.target)
        return VisionConfig.from_hf(fields) if fields.get("vision_config") else None

    def _laid_out(self) -> tuple[Mesh, list[Models]]:
        """Return the pairs on the requested mesh, or on the largest that divides them."""
        asked = self.tensor_parallel_size
        sizes = (asked,) if asked else [size for size in SIZES if size <= len(jax.devices())]
        for size in sizes[:-1]:
            with suppress(ValueError):
                return self._on(size)
        return self._on(sizes[-1])

    def _on(self, size: int) -> tuple[Mesh, list[Models]]:
        mesh, pairs = make_mesh(size), list(self._pairs())
        for model in (model for pair in pairs for model in pair if model):
            check_units(model.units, mesh)
            shard(model, mesh)
        return mesh, pairs

    def _pairs(self) -> Iterator[Models]:
        if self.target is None:
            for scheme in get_args(WeightScheme):
                yield abstract_target(LAYERS, scheme), abstract_draft(AUX_LAYER_IDS)
            return
        config = _read(self.target)
        text = config.get("text_config", config)
        layers = text["num_hidden_layers"]
        text["num_hidden_layers"] = min(layers, LAYERS)
        draft = None
        if self.draft is not None:
            read = _read(self.draft)
            draft = draft_from_config(read, dtype=jnp.bfloat16, num_target_layers=layers)
        yield target_from_config(config, dtype=jnp.bfloat16), draft


def assumed_gpu() -> AbstractContextManager[Any]:
    """On a CPU, make kernels take the paths of an AMD GPU in interpret mode."""
    return gpu.assume(REHEARSED) if jax.default_backend() == "cpu" else nullcontext()


def _read(path: Path) -> Any:
    return read_json(path / "config.json" if path.is_dir() else path)


def _calls(pair: Models, mesh: Mesh, config: EngineConfig) -> Iterator[Call]:
    """Yield the calls of a round and of a prefill chunk, for requests without logprobs."""
    aux_layer_ids = AUX_LAYER_IDS if pair[1] else ()
    for kind in (
        (ProgramKind.ROUND, ProgramKind.PREFILL)
        if config.method.needs_logits
        else (ProgramKind.ARGMAX_ROUND, ProgramKind.ARGMAX_PREFILL)
    ):
        function, shapes = round_program(*pair, config, aux_layer_ids, mesh, kind=kind)
        yield from recorded_calls(function, *shapes)
