"""From how many tokens on a served pair's pages are loaded rather than prefilled again."""

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import gpu
from serve.options.parallel import ParallelOptions
from serve.plan.data.gpus import GPUS
from serve.plan.model.draft_work import draft_shape
from serve.plan.model.host_memory import HostMemory
from serve.plan.model.memory import kv_pools
from serve.plan.model.parallel import Parallelism
from serve.plan.model.rounds import Shapes
from serve.plan.model.target_work import target_shape

ANY_PAGE = 1


def least_loaded(
    parallel: ParallelOptions, target: Target, draft: Eagle3Draft | None, config: EngineConfig
) -> int:
    """By the planner's model of this GPU and the pair on so many devices; 1, any page, on CPU and
    on GPUs that the planner doesn't know. target, draft: shapes are enough."""
    arch = gpu.current().arch
    known = next((known for known in GPUS.values() if known.arch == arch), None)
    if known is None:
        return ANY_PAGE
    over = Parallelism(
        parallel.tensor_parallel_size,
        parallel.draft_tensor_parallel_size,
        parallel.enable_expert_parallel,
        config.decode_context_parallel_size,
    )
    proposing = draft and draft_shape(draft, over)
    host = HostMemory(
        config.kv_offloading_bytes,
        kv_pools(target, draft, Parallelism()),
        {known.name: Shapes(target_shape(target, over), proposing, known)},
        "fp8" if config.kv_cache_dtype == "fp8" else "bfloat16",
        config.page_tokens,
        config.prefill_chunk,
        target.config.max_position_embeddings,
    )
    least = host.least_tokens(known.name)
    return ANY_PAGE if least <= config.page_tokens else least
