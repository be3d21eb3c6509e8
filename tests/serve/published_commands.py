"""The command lines that others have published for these pairs, word for word.

Only what each source leaves open is filled in: paths by the ids of what lies there, and variables
of scripts by a point of their own sweep.
"""

import re
import shlex
from dataclasses import dataclass

SERVERS = re.compile(
    r"(vllm serve|python3? -m sglang\.launch_server|python3? -m atom\.entrypoints\.openai_server) "
)
AITER = "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=INT4"


@dataclass(frozen=True)
class Published:
    """A command line, where it is from, and the environment that is exported before it."""

    source: str
    line: str
    exported: str = ""

    @property
    def arguments(self) -> list[str]:
        """Arguments for eagle3-serve in the place of the other server."""
        words, found = SERVERS.subn("", self.line.replace("\\\n", " "))
        assert found == 1, self.line
        return shlex.split(words)

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.exported.split())


EAGLE3_FP8_CARD = Published(
    "model card amd/Kimi-K2.5-Eagle3-FP8",
    """vllm serve amd/Kimi-K2.5-MXFP4 --port 8888 --tensor-parallel-size 4 \\
    --gpu-memory-utilization 0.90 --max-model-len 2304 --no-enable-prefix-caching \\
    --trust-remote-code --mm-encoder-tp-mode data --speculative-config \\
    '{"model":"amd/kimi-k2.5-eagle3-fp8","method":"eagle3","num_speculative_tokens":6,"draft_tensor_parallel_size":1}'""",
    "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER_FP4_ASM_GEMM=1",
)
BF16_CARD = Published(
    "the same card, with the BF16 draft",
    EAGLE3_FP8_CARD.line.replace(
        "amd/kimi-k2.5-eagle3-fp8", "lightseekorg/kimi-k2.5-eagle3"
    ).replace("2304", "2248"),
)
PLAIN_CARD = Published(
    "the same card, without a draft", EAGLE3_FP8_CARD.line.partition(" --speculative-config")[0]
)
W4A8_CARD = Published(
    "model card ginsongsong/eagle3-kimik2.5-w4a8",
    """python -m sglang.launch_server --model moonshotai/Kimi-K2.5 --tp 8 \\
    --speculative-algorithm EAGLE3 --speculative-draft-model-path \\
    ginsongsong/eagle3-kimik2.5-w4a8 --speculative-num-steps 3 --speculative-eagle-topk 1 \\
    --speculative-num-draft-tokens 4 --mem-fraction-static 0.80 --trust-remote-code \\
    --disable-radix-cache""",
)
MLA_CARD = Published(
    "model card lightseekorg/kimi-k2.5-eagle3-mla",
    """vllm serve moonshotai/Kimi-K2.5 --tensor-parallel-size 8 --speculative-config \\
    '{"model": "lightseekorg/kimi-k2.5-eagle3-mla", "method": "eagle3", \
"num_speculative_tokens": 3}' --trust-remote-code""",
)
W4A8_BLOG = Published(
    "rocm.blogs.amd.com, Faster Kimi-K2.5-W4A8 Decoding with EAGLE3",
    """python -m sglang.launch_server --model amd/Kimi-K2.5-W4A8 --tp 8 --attention-backend \\
    aiter --host 0.0.0.0 --port 9527 --mem-fraction-static 0.80 --trust-remote-code \\
    --disable-radix-cache --enable-torch-compile --numa-node 0 0 0 0 1 1 1 1 \\
    --speculative-algorithm EAGLE3 --speculative-draft-model-path \\
    lightseekorg/kimi-k2.5-eagle3 --speculative-num-steps 3 --speculative-eagle-topk 1 \\
    --speculative-num-draft-tokens 4""",
    "TRITON_MAX_CACHE_SIZE=2147483648 AITER_FLYDSL_MOE_COMPARE_STAGE2=0 "
    "AITER_FLYDSL_MOE_COMPARE=0 AITER_FLYDSL_DEBUG=0 AITER_ENFORCE_DSL=1 DSL2_ROOT=/opt/FlyDSL "
    "AITER_USE_FLYDSL_MOE=1 AITER_USE_FLYDSL_MOE_STAGE1=1 AITER_USE_FLYDSL_MOE_STAGE2=1 "
    "MLIR_PATH=/opt/mlir_install CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT=3 AITER_W4A8_USE_INT8=1 "
    "SGLANG_DISABLE_CUDNN_CHECK=1 SGLANG_USE_AITER=1 SGLANG_NUMA_BIND_V2=1 "
    "FLYDSL_MOE_STAGE1_SCHED=0 AITER_FLYDSL_STAGE2_TILE_K=256",
)
KIMI_MXFP4 = Published(
    "InferenceX 843c6254, kimik2.5_fp4_mi355x.sh",
    """vllm serve amd/Kimi-K2.5-MXFP4 --port 8888 --tensor-parallel-size=4 \\
    --enable-expert-parallel --gpu-memory-utilization 0.85 --max-model-len 9472 \\
    --kv-cache-dtype fp8 --block-size 16 --max-num-batched-tokens 16384 --max-num-seqs 512 \\
    --async-scheduling --trust-remote-code --no-enable-prefix-caching --mm-encoder-tp-mode \\
    data""",
    f"{AITER} VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS=1 VLLM_ROCM_USE_SKINNY_GEMM=0 "
    "AITER_MXFP4_INTERMEDIATE=1 AITER_BYPASS_TUNE_CONFIG=0 AITER_MOE_SORT_BACKEND=auto "
    "OMP_NUM_THREADS=1 VLLM_ROCM_USE_AITER_RMSNORM=0",
)
KIMI_EAGLE3 = Published(
    "InferenceX 7d405186, kimik2.5_fp4_mi355x_vllm_eagle3.sh (#1116, of the blog on MI355X)",
    """vllm serve amd/Kimi-K2.5-MXFP4 --port 8888 --tensor-parallel-size=4 \\
    --enable-expert-parallel --gpu-memory-utilization 0.90 --max-model-len 2248 \\
    --max-num-seqs 64 --long-prefill-token-threshold 8192 --max-num-batched-tokens 16384 \\
    --mm-encoder-tp-mode data --no-enable-prefix-caching --speculative-config \\
    '{"model": "lightseekorg/kimi-k2.5-eagle3", "method": "eagle3", \
"num_speculative_tokens": 3, "rejection_sample_method": "standard", \
"draft_tensor_parallel_size": 1}' --trust-remote-code""",
    f"{AITER} VLLM_ROCM_USE_AITER_RMSNORM=0",
)
KIMI_EAGLE3_FP8 = Published(
    "the same with the FP8 draft (#1515)",
    KIMI_EAGLE3.line.replace("lightseekorg/kimi-k2.5-eagle3", "amd/kimi-k2.5-eagle3-fp8"),
    KIMI_EAGLE3.exported,
)
KIMI_SYNTHETIC = Published(
    "InferenceX 7d405186, kimik2.5_fp4_mi355x_vllm_mtp_fixed_AR.sh",
    KIMI_EAGLE3.line.replace(
        '"standard"', '"synthetic", "synthetic_acceptance_rates": [0.75, 0.5, 0.25]'
    ),
    KIMI_EAGLE3.exported,
)
KIMI_SGLANG = Published(
    "InferenceX b447c089, kimik2.5_fp4_mi355x_sglang.sh",
    """python3 -m sglang.launch_server --model-path amd/Kimi-K2.5-MXFP4 --host=0.0.0.0 --port \\
    8888 --tensor-parallel-size 4 --trust-remote-code --mem-fraction-static 0.765 \\
    --disable-radix-cache --attention-backend aiter --kv-cache-dtype fp8_e4m3 \\
    --chunked-prefill-size 16384 --max-prefill-tokens 16384 --max-running-requests 64 \\
    --cuda-graph-max-bs 64 --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 \\
    --enable-aiter-allreduce-fusion --context-length 2080""",
    "TORCH_BLAS_PREFER_HIPBLASLT=1 SGLANG_USE_AITER=1 SGLANG_USE_AITER_RMSNORM=0",
)
KIMI_INT4 = Published(
    "InferenceX 843c6254, kimik2.5_int4_mi355x.sh; vLLM's recipe has the same two flags",
    """vllm serve moonshotai/Kimi-K2.5 --port 8888 --tensor-parallel-size=8 \\
    --gpu-memory-utilization 0.95 --max-model-len 2248 --block-size=64 --trust-remote-code \\
    --no-enable-prefix-caching --max-num-seqs 256 --moe-backend flydsl --compilation-config \\
    '{"pass_config": {"fuse_allreduce_rms": false}}' --mm-encoder-tp-mode data""",
    "VLLM_ROCM_USE_AITER=1",
)
KIMI_ATOM = Published(
    "InferenceX 843c6254, kimik2.5_fp4_mi355x_atom.sh",
    """python3 -m atom.entrypoints.openai_server --model amd/Kimi-K2.5-MXFP4 --server-port 8888 \\
    -tp 4 --scheduler-delay-factor 1 --kv_cache_dtype fp8  --max-model-len 10240   \\
    --enable-expert-parallel --trust-remote-code""",
    "ATOM_DISABLE_MMAP=true AITER_QUICK_REDUCE_QUANTIZATION=INT4 AITER_MXFP4_INTERMEDIATE=1 "
    "OMP_NUM_THREADS=1",
)
MINIMAX_FP8 = Published(
    "InferenceX 843c6254, minimaxm2.5_fp8_mi355x.sh",
    """vllm serve MiniMaxAI/MiniMax-M2.5 --port 8888 --tensor-parallel-size=4 \\
    --enable-expert-parallel --gpu-memory-utilization 0.95 --max-model-len 2248 \\
    --kv-cache-dtype fp8 --block-size=16 --no-enable-prefix-caching --attention-backend \\
    "ROCM_AITER_FA" --no-async-scheduling --trust-remote-code""",
    f"{AITER} VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT=1",
)
MINIMAX_MXFP4 = Published(
    "InferenceX 843c6254, minimaxm2.5_fp4_mi355x.sh",
    """vllm serve amd/MiniMax-M2.5-MXFP4 --port 8888 --tensor-parallel-size=4 \\
    --enable-expert-parallel --gpu-memory-utilization 0.95 --max-model-len 2248 \\
    --kv-cache-dtype fp8 --block-size=32 --no-enable-prefix-caching --attention-backend \\
    "ROCM_AITER_FA" --trust-remote-code""",
    "VLLM_ROCM_USE_AITER=1 VLLM_USE_RUST_FRONTEND=1",
)
MINIMAX_EAGLE3 = Published(
    "InferenceX 89da5617, minimaxm2.5_fp8_mi355x_vllm_eagle3.sh (#1234, of the same blog)",
    """vllm serve MiniMaxAI/MiniMax-M2.5 --port 8888 --tensor-parallel-size=4 \\
    --enable-expert-parallel --gpu-memory-utilization 0.90 --max-model-len 2248 \\
    --max-num-seqs 64 --kv-cache-dtype fp8 --block-size=32 --no-enable-prefix-caching \\
    --attention-backend "ROCM_AITER_FA" --speculative-config \\
    '{"model": "thoughtworks/MiniMax-M2.5-Eagle3", "method": "eagle3", \
"num_speculative_tokens": 3, "rejection_sample_method": "standard", \
"draft_tensor_parallel_size": 1}' --trust-remote-code""",
    AITER,
)
MINIMAX_ATOM = Published(
    "InferenceX 843c6254, minimaxm2.5_fp8_mi355x_atom.sh",
    """python3 -m atom.entrypoints.openai_server --model MiniMaxAI/MiniMax-M2.5 --server-port \\
    8888 -tp 4 --kv_cache_dtype fp8  --max-model-len 10240   --enable-expert-parallel \\
    --gpu-memory-utilization 0.9 --trust-remote-code""",
    "OMP_NUM_THREADS=1",
)
KIMI_TOOLS = Published(
    "vLLM's recipes, moonshotai/Kimi-K2.5 on MI300X and MI325X",
    """vllm serve moonshotai/Kimi-K2.5 --host 0.0.0.0 --port 8000 --trust-remote-code \\
    --tensor-parallel-size 8 --tool-call-parser kimi_k2 --enable-auto-tool-choice \\
    --reasoning-parser kimi_k2 --mm-encoder-tp-mode data""",
    AITER,
)
COMMANDS = (
    *(EAGLE3_FP8_CARD, BF16_CARD, PLAIN_CARD, W4A8_CARD, MLA_CARD, W4A8_BLOG),
    *(KIMI_MXFP4, KIMI_EAGLE3, KIMI_EAGLE3_FP8, KIMI_SYNTHETIC, KIMI_SGLANG, KIMI_INT4, KIMI_ATOM),
    *(MINIMAX_FP8, MINIMAX_EAGLE3, MINIMAX_MXFP4, MINIMAX_ATOM, KIMI_TOOLS),
)
CHECKPOINTS = {
    "moonshotai/Kimi-K2.5": "kimi_int4_ct",
    "amd/Kimi-K2.5-MXFP4": "kimi_mxfp4_quark",
    "amd/Kimi-K2.5-W4A8": "kimi_w4a8_quark",
    "MiniMaxAI/MiniMax-M2.5": "minimax_fp8block",
    "amd/kimi-k2.5-eagle3-fp8": "draft_mha_fp8_ptpc",
    "lightseekorg/kimi-k2.5-eagle3": "draft_mha_bf16",
    "lightseekorg/kimi-k2.5-eagle3-mla": "draft_mla_bf16",
    "ginsongsong/eagle3-kimik2.5-w4a8": "draft_mha_int4_pc",
    "thoughtworks/MiniMax-M2.5-Eagle3": "draft_minimax_bf16",
}
"""Published ids -> tiny checkpoints of the same form, by third parties."""
