"""Write a random MiniMax target with a random draft under the embedded pair's tokenizer."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from convert import save_hf
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.grouped import GroupedQueryTarget
from eagle3_tools.bench.gpu.worker import embedded_pair
from eagle3_tools.make_demo.recipe import MINIMAX
from serve.demo import demo_target_dir

TOKENIZER_FILES = ("tiktoken.model", "tokenizer_config.json", "chat_template.jinja")
SHARPER = 50
"""Factor of the head: the scores of a random head are nearly equal."""


def write_random_minimax(folder: Path) -> tuple[Path, Path]:
    """Write the pair below `folder` in published form; return both directories."""
    target = GroupedQueryTarget(MINIMAX, rngs=nnx.Rngs(0))
    head: Any = target.lm_head.kernel
    head.set_value(SHARPER * head.get_value())
    embedded = embedded_pair().draft
    assert embedded, "the embedded pair has a draft"
    config = replace(
        embedded.config,
        hidden_size=MINIMAX.hidden_size,
        target_hidden_size=MINIMAX.hidden_size,
        draft_vocab_size=MINIMAX.vocab_size,
        aux_layer_ids=(1, 2, 3),
    )
    draft = Eagle3Draft(config, rngs=nnx.Rngs(1))
    save_hf(target, folder / "target", dtype="float32")
    save_hf(draft, folder / "draft", dtype="float32", shared_with=target)
    for name in TOKENIZER_FILES:
        shutil.copy(demo_target_dir() / name, folder / "target" / name)
    return folder / "target", folder / "draft"
