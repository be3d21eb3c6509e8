"""Constant properties of a KV cache, under the names of vLLM's labels."""

from eagle3_jax.engine import EngineConfig

GIB = 2**30


def cache_facts(config: EngineConfig, memory_share: float | None) -> dict[str, str]:
    """Return labels and their values. "None" is vLLM's word for an unset value.

    num_gpu_blocks excludes the scratch page; kv_offloading_size is in GiB.
    """
    pages = config.pool_pages - 1
    offloaded = config.kv_offloading_bytes
    facts = {
        "block_size": config.page_tokens,
        "num_gpu_blocks": pages,
        "kv_cache_size_tokens": pages * config.page_tokens,
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": config.enable_prefix_caching,
        "prefix_caching_hash_algo": "blake2b",
        "gpu_memory_utilization": memory_share,
        "kv_offloading_backend": "native" if offloaded else None,
        "kv_offloading_size": f"{offloaded / GIB:g}" if offloaded else None,
    }
    return {label: str(value) for label, value in facts.items()}
