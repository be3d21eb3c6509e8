"""The same weights in llama.cpp, through the wheel xllamacpp, generating greedily.

Its flash attention, which it uses by default, rounds to less than float32: log-probabilities of the
random model are off by up to 0.012 from the first token on, and by 0.000002 without it. So it is
off, and tokens can be compared. The KV cache has the dtype of the weights.
"""

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from convert.fill import shapes_of
from convert.models.kimi_k25 import kimi_rules
from convert.save import host_reader, saved_tensors
from eagle3_jax.models.kimi import KimiTarget
from eagle3_tools.bench.cpu.gguf_file import TOKEN, write_kimi

PACKAGE = "xllamacpp"


def missing_package() -> str | None:
    """Return one line that says how to install llama.cpp, or None if it is installed."""
    if find_spec(PACKAGE):
        return None
    return f"llama.cpp is left out: pip install {PACKAGE} adds it"


class LlamaPeer:
    """llama.cpp's server in this process, without HTTP; `batch` sequences of `context` tokens."""

    def __init__(
        self, target: KimiTarget, *, dtype: Any, batch: int, context: int, threads: int
    ) -> None:
        # It is imported on demand because it is an optional peer.
        import xllamacpp as llama  # pyright: ignore[reportMissingImports]

        rules, read = kimi_rules(target.config), host_reader(target)
        saved = saved_tensors(rules, shapes_of(target), read, np.dtype(np.float32))
        published = {tensor.path: tensor.read() for tensor in saved}
        types, flash = llama.ggml_type, llama.llama_flash_attn_type
        wide = np.dtype(dtype) == np.float32
        options = llama.CommonParams()
        options.n_parallel, options.n_ctx = batch, batch * context
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        options.cache_type_k = types.GGML_TYPE_F32 if wide else types.GGML_TYPE_BF16
        options.cache_type_v = options.cache_type_k
        options.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.cache_prompt, options.cache_ram_mib = False, 0
        options.verbosity, options.warmup, options.fit_params = 0, False, False
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "kimi.gguf"
            write_kimi(file, target.config, published, dtype)
            options.model.path = str(file)
            self._server = llama.Server(options)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Return exactly `new_tokens` greedy tokens for each prompt, all decoded together."""

        body = {"prompt": [list(prompt) for prompt in prompts], "n_predict": new_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
        choices = self._server.handle_completions(body)["choices"]
        texts = [choice["text"] for choice in sorted(choices, key=lambda it: it["index"])]
        return [[int(number) for number in text.split(TOKEN)[1:]] for text in texts]
