"""Pairs whose pages differ have other names."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from driving import sizes
from jax.sharding import NamedSharding, PartitionSpec
from tiny import latent_draft, tiny_draft, tiny_target
from tiny_vision import VISION

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.programs import fingerprint as compiled_for
from eagle3_jax.engine.programs.fingerprint import page_fingerprint
from eagle3_jax.mesh import make_mesh
from pallas_kernels import gpu

WEIGHTS = [
    np.random.default_rng(i).integers(0, 256, (4, 8), np.uint8).view(dtype)
    for i, dtype in enumerate(["u1", "i1", "f4", "i4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
]


def name_of(weights: list[np.ndarray], vision: VisionConfig | None = None, **fields: Any) -> bytes:
    return name_of_arrays(tuple(map(jnp.asarray, weights)), vision, **fields)


def name_of_arrays(
    arrays: tuple[jax.Array, ...], vision: VisionConfig | None = None, **fields: Any
) -> bytes:
    return page_fingerprint(tiny_target().config, None, arrays, sizes(3, **fields), 50, vision)


def test_every_bit_of_the_weights_is_in_a_pairs_name() -> None:
    names = {name_of(WEIGHTS)}
    for which, place in product(range(len(WEIGHTS)), (0, 13, 31)):
        changed = [array.copy() for array in WEIGHTS]
        changed[which].view(np.uint8).reshape(-1)[place] ^= 1
        names.add(name_of(changed))
    assert len(names) == 1 + 3 * len(WEIGHTS)


def test_a_pairs_name_tells_places_sizes_and_modes_apart() -> None:
    swapped = [array[::-1] for array in WEIGHTS]
    names = [name_of(WEIGHTS), name_of(swapped), name_of(WEIGHTS, page_size=8)]
    names += [name_of(WEIGHTS, exact=True), name_of(WEIGHTS[1:])]
    names += [name_of(WEIGHTS, kv_cache_dtype="fp8", kv_cache_scale=s) for s in (0.5, 0.25)]
    seeing = [{}, {"mm_draft_embedding": "target"}, {"mm_encoder_tp_mode": "weights"}]
    names += [name_of(WEIGHTS, VISION, **fields) for fields in seeing]
    names += [name_of(WEIGHTS, replace(VISION, projector_ln_eps=1e-3))]
    names += [name_of(WEIGHTS, exact=True, prefill_chunk=16)]
    names += [name_of(WEIGHTS, kernels="xla"), name_of(WEIGHTS, xla_kernels=("mla_decode",))]
    for draft in (tiny_draft, latent_draft):
        arrays = tuple(map(jnp.asarray, WEIGHTS))
        made = draft(tiny_target()).config
        names.append(page_fingerprint(tiny_target().config, made, arrays, sizes(3), 50))
    assert len({*names}) == len(names)
    assert name_of(WEIGHTS) == names[0]


def on_devices(count: int, *, expert_parallel: bool) -> tuple[jax.Array, ...]:
    """The weights, whole on every device of a mesh."""
    mesh = make_mesh(count, enable_expert_parallel=expert_parallel)
    return tuple(jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec())))


def test_devices_that_divide_experts_and_those_that_divide_columns_have_other_names() -> None:
    """Configuration and bytes of a page are the same; sums of other parts have other last bits."""
    lie = [(2, False), (2, True), (4, False), (4, True)]
    names = [name_of_arrays(on_devices(count, expert_parallel=e)) for count, e in lie]
    names.append(name_of(WEIGHTS))
    assert len({*names}) == len(names)


def test_what_programs_are_compiled_for_is_in_a_pairs_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The order in which instructions are listed, and where XLA writes what it made, are not."""
    plugins = {"jax-rocm7-pjrt": "0.10.2"}
    cpu = tmp_path / "cpuinfo"
    monkeypatch.setattr(compiled_for, "CPU_FACTS", cpu)
    monkeypatch.setattr(gpu, "plugin_versions", lambda: plugins)
    monkeypatch.setattr(gpu, "current", lambda: gpu.MI355X)

    def name(instructions: str = "avx avx2", flags: str = "", cores: int = 2) -> bytes:
        cpu.write_text(f"model name : any\nflags : {instructions}\n")
        monkeypatch.setenv("XLA_FLAGS", flags)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
        return name_of(WEIGHTS)

    fast = "--xla_cpu_enable_fast_math=true"
    file = tmp_path / "flags"
    file.write_text(f"{fast} --xla_gpu_deterministic_ops")
    names = [name(), name("avx"), name(flags=fast), name(flags=str(file)), name(cores=3)]
    names.append(name_of(WEIGHTS, xla_autotune=True))
    with jax.default_matmul_precision("highest"):
        names.append(name())
    assert name("avx2 avx", "--xla_dump_to=/tmp/there") == names[0]
    plugins["jax-rocm7-pjrt"] = "0.10.2.post1"
    names.append(name())
    monkeypatch.setattr(gpu, "library_versions", lambda: {"ROCm": "7.2.1"})
    names.append(name())
    assert len({*names}) == len(names)
