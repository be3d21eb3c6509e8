"""Describe a pair before its weights are read: checkpoints, shapes and placement."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from convert.abstract_model import AbstractModel
from convert.device_memory import GIB
from convert.hub.checkpoint import check_roles, find_checkpoint
from convert.load import holds_vision, prepare_draft, prepare_target, prepare_vision
from convert.text.tokenizer import Tokenizer, load_tokenizer
from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.mesh import make_mesh
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.speculative.state import DecodeState
from serve.options.checkpoint import DEFAULTS, LoadOptions
from serve.options.parallel import ONE_DEVICE, ParallelOptions
from serve.pair.generation_config import SamplingDefaults, read_sampling_defaults
from serve.pair.notices import Notify, notices, print_to_stderr


def as_it_is(read: Tokenizer) -> Tokenizer:
    """Return the tokenizer unchanged."""
    return read


@dataclass(frozen=True)
class AbstractModels:
    """Abstract target, draft and vision model (or None), with the sources of their parameters.

    `mesh` has the devices that will hold them, None for one device.
    """

    target: AbstractModel[Target]
    draft: AbstractModel[Eagle3Draft] | None
    vision: AbstractModel[VisionModel] | None
    tokenizer: Tokenizer
    defaults: SamplingDefaults
    mesh: Mesh | None

    @property
    def models(self) -> tuple[Target, Eagle3Draft | None, VisionModel | None]:
        """The models, abstract until they are filled."""
        draft, vision = self.draft, self.vision
        return self.target.model, draft and draft.model, vision and vision.model

    def state_shapes(self, config: EngineConfig) -> DecodeState:
        """Return the abstract state of an engine over the pair."""
        target, draft, vision = self.models
        rows = ImageLayout.of(vision, target, draft, config).rows if vision else 0
        num_aux = draft.config.num_aux if draft else 0
        return StateLayout(target, draft, config, num_aux, self.mesh, rows).shapes()

    def weights_needed(self, notify: Notify) -> dict[str, int]:
        """Return the bytes of weights on each device by purpose."""
        needed = {"of the target's weights": self.target.device_bytes}
        if self.draft:
            needed["of the draft's"] = self.draft.device_bytes
        if self.vision:
            needed["of vision"] = self.vision.device_bytes
            taken = self.vision.device_bytes / GIB
            notify(f"images are taken: vision has {taken:.2f} GiB on each device")
        return needed


def prepare_pair(
    model: str | Path,
    draft: str | Path | None,
    options: LoadOptions = DEFAULTS,
    parallel: ParallelOptions = ONE_DEVICE,
    *,
    tokenizer: Path | None = None,
    vision: bool = False,
    split_vision: bool = False,
    notify: Notify = print_to_stderr,
    adapt_tokenizer: Callable[[Tokenizer], Tokenizer] = as_it_is,
) -> AbstractModels:
    """Describe a pair without reading weights; raises as `serve.pair.loading.load_pair`."""
    model, draft = find_checkpoint(model), find_checkpoint(draft) if draft else None
    check_roles(model, draft)
    # Small files first: a mistake in them should not wait for the weights.
    defaults = read_sampling_defaults(model)
    read = adapt_tokenizer(load_tokenizer(tokenizer or model))
    mesh = mesh_of_size(parallel)
    activations, proposing, seeing = options.quantize_activations, None, None
    with notices(notify):
        target = prepare_target(model, mesh=mesh, quantize_activations=activations)
        if draft:
            proposing = prepare_draft(
                draft,
                target.model,
                mesh=mesh if parallel.splits_draft else None,
                quantize_activations=activations,
                **options.for_draft,
            )
        if vision and holds_vision(model):
            seeing = prepare_vision(model, mesh=mesh, split=split_vision)
    return AbstractModels(target, proposing, seeing, read, defaults, mesh)


def mesh_of_size(parallel: ParallelOptions) -> Mesh | None:
    """Return the mesh of these devices, None for one device; ValueError if there are too few."""
    size, found = parallel.devices, len(jax.devices())
    if size == 1:
        return None
    if size > found and jax.default_backend() == "cpu":
        replicas = parallel.data_parallel_size
        of_each = f"--data-parallel-size {replicas} times " if replicas > 1 else ""
        raise ValueError(
            f"{of_each}--tensor-parallel-size {parallel.tensor_parallel_size}: there is 1 CPU "
            f"device unless the environment says otherwise, here {found}; "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={size} makes as many, to try it out"
        )
    return make_mesh(
        parallel.tensor_parallel_size,
        enable_expert_parallel=parallel.enable_expert_parallel,
        data_parallel_size=parallel.data_parallel_size,
    )
