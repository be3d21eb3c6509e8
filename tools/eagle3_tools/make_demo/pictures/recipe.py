"""Recipe of the vision pair: tokenizer and sizes."""

import random
from itertools import islice
from pathlib import Path

from convert import write_tokenizer_json
from convert.text.tiktoken_file import NUM_RESERVED
from eagle3_jax.config import DraftConfig, KimiConfig, RopeConfig, YarnConfig
from eagle3_jax.config.vision import PixelConfig, VisionConfig
from eagle3_tools.make_demo.pictures.picture import SIDE, pictures
from eagle3_tools.make_demo.pictures.questions import TOPICS, ask
from eagle3_tools.make_demo.tokenizer import train_ranks, write_tokenizer

BASE_TOKENS = 352
MAX_LENGTH = 1024
ROWS, ROW_LENGTH = 32, 52  # one step's batch; every question with its answer fits into a row
PATCH = 14
GRID = SIDE // PATCH
IMAGE_TOKENS = GRID**2 // 4
SHARES = (4, 2, 2, 4)  # relative frequency of each topic in training
PLACEHOLDER = BASE_TOKENS + 21

TARGET = KimiConfig(
    vocab_size=BASE_TOKENS + NUM_RESERVED,
    hidden_size=96,
    intermediate_size=192,
    moe_intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    routed_scaling_factor=1.5,
    norm_topk_prob=True,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=16,
    v_head_dim=24,
    rms_norm_eps=1e-5,
    max_position_embeddings=MAX_LENGTH,
    rope=RopeConfig(50000.0, YarnConfig(4.0, 256, mscale=1.0, mscale_all_dim=1.0)),
    eos_token_ids=(BASE_TOKENS + 2, BASE_TOKENS + 1),
    media_placeholder_token_id=PLACEHOLDER,
)
VISION = VisionConfig(
    hidden_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=192,
    pos_emb_height=GRID,
    pos_emb_width=GRID,
    pos_emb_time=4,
    patch_size=PATCH,
    text_hidden_size=TARGET.hidden_size,
    merge_size=2,
    projector_ln_eps=1e-5,
    media_placeholder_token_id=PLACEHOLDER,
    # Larger pictures are shrunk to SIDE pixels.
    pixels=PixelConfig(in_patch_limit=GRID**2, patch_limit_on_one_side=GRID),
)
DRAFT = DraftConfig(
    vocab_size=TARGET.vocab_size,
    draft_vocab_size=TARGET.vocab_size,
    hidden_size=TARGET.hidden_size,
    target_hidden_size=TARGET.hidden_size,
    intermediate_size=256,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=48,
    rms_norm_eps=1e-6,
    max_position_embeddings=MAX_LENGTH,
    rope=RopeConfig(TARGET.rope.theta),
    aux_layer_ids=(1, 2, 3),
)


def make_tokenizer(directory: Path) -> None:
    """Train the tokenizer on questions and answers, and write its published files."""
    rng = random.Random("tokenizer")
    asked = (ask(rng, rng.choice(TOPICS), p) for p in islice(pictures("train", 0), 5_000))
    texts = [
        "user",
        "assistant",
        "system",
        "image",
        *(t for q in asked for t in (q.text, q.answer)),
    ]
    write_tokenizer(directory, train_ranks(texts, BASE_TOKENS), MAX_LENGTH)
    write_tokenizer_json(directory)
