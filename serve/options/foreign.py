"""Flags and environment variables of vLLM, SGLang and ATOM without effect here, with the reason."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serve.kv_events.config import HASHES_VARIABLE
from serve.options.operations import KEY_VARIABLE

KERNELS = "kernels follow from the device, the tensors and --kernels"
COMPILED = "all programs are compiled before the server is ready"
ONE_PROCESS = "images are preprocessed in the server's own process"
ROUNDS = "the next round is always dispatched before one is read"
CHUNKS = "prompts are always prefilled in chunks between rounds, as --max-num-batched-tokens says"
LOGGED = "--disable-uvicorn-access-log and --enable-log-requests say what is logged"
ORDER = "requests are taken in the order of their arrival"
WITH_VALUE = {
    "--all2all-backend": "experts exchange by one sum over the devices",
    "--attention-backend": KERNELS,
    "--dcp-comm-backend": "queries are gathered, and each head's shares are exchanged",
    "--compilation-config": COMPILED,
    "--cuda-graph-max-bs": COMPILED,
    "--decode-log-interval": "/metrics counts every round",
    "--device": "JAX_PLATFORMS names it, by default the accelerator that is there",
    "--long-prefill-token-threshold": CHUNKS,
    "--max-prefill-tokens": CHUNKS,
    "--max-seq-len-to-capture": COMPILED,
    "--mm-attention-backend": KERNELS,
    "--mm-encoder-attn-backend": KERNELS,
    "--mm-processor-cache-type": ONE_PROCESS,
    "--mm-shm-cache-max-object-size-mb": ONE_PROCESS,
    "--moe-backend": KERNELS,
    "--num-continuous-decode-steps": ROUNDS,
    "--quantization": "the checkpoint's tensors say how they are quantised",
    "--schedule-conservativeness": "a sequence that finds no page is preempted and goes on later",
    "--schedule-policy": ORDER,
    "--scheduler-delay-factor": ORDER,
    "--stream-interval": "tokens are streamed as rounds commit them",
    "--swap-space": "--kv-offloading-size keeps what preempted sequences had",
    "--tokenizer-mode": "the checkpoint's files say which tokenizer it is",
}
SWITCHES = {
    "--async-scheduling": ROUNDS,
    "--no-async-scheduling": ROUNDS,
    "--disable-cuda-graph": COMPILED,
    "--disable-custom-all-reduce": "XLA chooses how devices sum",
    "--disable-log-requests": LOGGED,
    "--disable-log-stats": "/metrics is always there",
    "--disable-overlap-schedule": ROUNDS,
    "--enable-aiter-allreduce-fusion": KERNELS,
    "--enable-chunked-prefill": CHUNKS,
    "--no-enable-chunked-prefill": CHUNKS,
    "--enable-metrics": "/metrics is always there",
    "--enable-mixed-chunk": CHUNKS,
    "--enable-server-load-tracking": "/metrics tells the load",
    "--enable-tokenizer-info-endpoint": "/tokenizer_info is always there",
    "--enable-torch-compile": COMPILED,
    "--enforce-eager": COMPILED,
    "--no-enable-log-requests": LOGGED,
    "--skip-mm-profiling": "the memory of vision follows from its configuration",
    "--skip-server-warmup": COMPILED,
    "--trust-remote-code": "tokenizer and chat template are read as data, no code is run",
}
SEVERAL_VALUES = {"--numa-node": "bind the process to its node with numactl"}
KEYS = {
    "attention_backend": KERNELS,
    "code_revision": "no code of a checkpoint is run",
    "disable_eagle_block_drop": "no cached page is dropped for the draft",
    "disable_padded_drafter_batch": COMPILED,
    "enforce_eager": COMPILED,
    "kv_cache_dtype": "target and draft share pages of one dtype",
    "max_model_len": "the draft goes as far as the target",
    "moe_backend": KERNELS,
    "quantization": "the draft's tensors say how they are quantised",
    "use_local_argmax_reduction": "devices exchange one score and id per row",
}
"""Keys of --speculative-config."""
REASONS = {
    **WITH_VALUE,
    **SWITCHES,
    **SEVERAL_VALUES,
    **{f"--speculative-config {key}": reason for key, reason in KEYS.items()},
}
CHOICES = {
    "--dtype": ("auto",),
    "--load-format": ("auto", "safetensors"),
}
"""Known flags, with the values that this engine implements anyhow."""
MEANINGS = {
    "choose or build kernels of other engines": (
        *("VLLM_ROCM_", "VLLM_USE_TRITON_", "VLLM_USE_AITER_", "SGLANG_USE_AITER", "SGLANG_AITER_"),
        *("AITER_", "FLYDSL_", "DSL2_ROOT", "CK_TILE_", "MLIR_PATH", "TRITON_"),
        "TORCH_BLAS_",
    ),
    "options of other engines": ("VLLM_", "SGLANG_", "ATOM_", "SAFETENSORS_FAST_GPU"),
    "threads of OpenMP, which nothing here uses": ("OMP_NUM_THREADS",),
}
"""Meaning -> prefixes of variables; the first match counts."""


class _Notice(argparse.Action):
    """Action of a flag without effect: accept and record it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **kwargs)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        if option not in namespace.without_effect:
            namespace.without_effect = [*namespace.without_effect, option]


def add_other_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; those given appear once each in the namespace's `without_effect`."""
    parser.set_defaults(without_effect=[])
    for names, count in ((WITH_VALUE, 1), (SWITCHES, 0), (SEVERAL_VALUES, "+")):
        for name in names:
            parser.add_argument(name, action=_Notice, nargs=count)
    for name, values in CHOICES.items():
        parser.add_argument(name, choices=values, help=argparse.SUPPRESS)


def describe_ignored_flags(flags: Sequence[str]) -> Iterator[str]:
    """Yield a line for each flag, or each key of a flag."""
    for flag in flags:
        yield f"{flag} has no effect in this engine: {REASONS[flag]}"


def describe_ignored_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each kind of variable that is set."""
    left = environment.keys() - {KEY_VARIABLE, HASHES_VARIABLE}
    for meaning, beginnings in MEANINGS.items():
        found = sorted(name for name in left if name.startswith(beginnings))
        left -= {*found}
        if found:
            yield f"not read, {meaning}: {', '.join(found)}"
