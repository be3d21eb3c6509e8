"""Settings of an engine: what is refused, and what follows from the others."""

from typing import Any

import pytest

from eagle3_jax.engine import EngineConfig
from eagle3_jax.speculative.method import Widths, speculation_method

TABLE = "num_speculative_tokens_per_batch_size"
METHOD = "rejection_sample_method"
LENGTH, RATES = "synthetic_acceptance_length", "synthetic_acceptance_rates"
SYNTHETIC = {METHOD: "synthetic", LENGTH: 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_speculative_tokens": 99}, "num_speculative_tokens must be 0..8, got 99"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"page_size": 0}, "page_size"),
        ({"prefill_chunk": 0}, "prefill_chunk"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_model_len": 100, "page_size": 16, "num_pages": 7}, "at least 8.*got 7"),
        ({"batch_buckets": (1, 2)}, "end at max_num_seqs=8"),
        ({"batch_buckets": (0, 8)}, "positive"),
        ({"eagle_topk": 0}, "eagle_topk must be 1..16; got 0"),
        ({"eagle_topk": 1, "num_draft_tokens": 12}, "must be 4; got 12"),
        ({"eagle_topk": 4}, "num_draft_tokens must be 2..37 with eagle_topk 4 and 3 steps.*None"),
        ({"eagle_topk": 4, "num_draft_tokens": 38}, "2..37.*got 38"),
        ({"eagle_topk": 8, "num_draft_tokens": 65}, "2..64.*got 65"),
        ({"eagle_topk": 4, "num_draft_tokens": 1}, "got 1"),
        ({"eagle_topk": 2, "num_draft_tokens": 2, "num_speculative_tokens": 0}, "at least 1"),
        (
            {"eagle_topk": 2, "num_draft_tokens": 4, "exact": True},
            "exact mode needs drafts in chains",
        ),
        (
            {"eagle_topk": 2, "num_draft_tokens": 4, "adaptive": True},
            "adaptive.*needs drafts in chains",
        ),
        (
            {"eagle_topk": 2, "num_draft_tokens": 4, "decode_context_parallel_size": 2},
            "decode_context_parallel_size needs drafts in chains: eagle_topk must be 1, got 2",
        ),
        (
            {"eagle_topk": 2, "num_draft_tokens": 4, METHOD: "block"},
            "'block' needs drafts in chains",
        ),
        ({"adaptive": True, "num_speculative_tokens": 0}, "at least 1 with adaptive"),
        ({"adaptive": True, "exact": True}, "the same k in every round: leave adaptive out"),
        ({"adaptive": True, **SYNTHETIC}, "the same k in every round, which adaptive changes"),
        ({"adaptive": True, TABLE: ((1, 8, 1),)}, f"{TABLE} or adaptive, not both"),
        ({TABLE: ((1, 8, 1),), "exact": True}, f"every round: leave {TABLE} out"),
        ({TABLE: ((1, 8, 1),), **SYNTHETIC}, f"which {TABLE} changes"),
        ({TABLE: ((1, 8, 4),)}, r"k in 0\.\.num_speculative_tokens=3; got \[1, 8, 4\]"),
        ({TABLE: ((4, 2, 1), (1, 3, 1))}, "first <= last"),
        ({TABLE: ((1, 4, 3), (4, 8, 1))}, r"must not overlap; got \[1, 4, 3\] and \[4, 8, 1\]"),
        ({TABLE: ((2, 8, 1),)}, "begin at batch size 1; its first row begins at 2"),
        ({TABLE: ((1, 8),)}, "three integers"),
        ({METHOD: "blocks"}, "one of coupled, standard, block, synthetic; got 'blocks'"),
        ({METHOD: "block", "exact": True}, "exact mode promises.*got 'block'"),
        ({"draft_sample_method": "best"}, "probabilistic or greedy; got 'best'"),
        ({"xla_autotune": True, "exact": True}, "exact mode needs the same programs"),
        ({LENGTH: 2.0}, "need rejection_sample_method 'synthetic'"),
        ({METHOD: "standard", RATES: (0.5, 0.2, 0.1)}, "need rejection_sample_method 'synthetic'"),
        ({METHOD: "synthetic"}, "got 0 of them"),
        ({**SYNTHETIC, RATES: (0.5, 0.2, 0.1)}, "got 2 of them"),
        ({METHOD: "synthetic", LENGTH: 4.5}, r"\[1, 4\]; got 4.5"),
        ({METHOD: "synthetic", LENGTH: float("nan")}, r"\[1, 4\]; got nan"),
        ({METHOD: "synthetic", RATES: (0.5, 0.6, 0.1)}, "do not rise"),
        ({METHOD: "synthetic", RATES: (0.5, 0.2)}, "3 numbers"),
        ({"kv_cache_dtype": "int8"}, "auto or bfloat16 or fp8, got 'int8'"),
        ({"kv_cache_dtype": "fp8", "kv_cache_scale": 0.0}, "must be positive, got 0.0"),
        ({"kv_cache_scale": 2.0}, "kv_cache_scale needs kv_cache_dtype fp8"),
        ({"kv_cache_dtype": "fp8"}, "fp8 needs kv_cache_scale: measured scales"),
    ],
)
def test_sizes_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**changes)


@pytest.mark.parametrize(
    ("most", "buckets"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))]
)
def test_buckets_double_up_to_the_most(most: int, buckets: tuple[int, ...]) -> None:
    config = EngineConfig(max_num_seqs=most)
    assert config.buckets == buckets
    for batch in range(1, most + 1):
        assert config.bucket_for(batch) == min(b for b in buckets if b >= batch)
    assert EngineConfig(exact=True, max_num_seqs=5, batch_buckets=(1, 5)).buckets == (5,)


def test_the_default_pool_holds_every_sequence_at_full_length() -> None:
    config = EngineConfig(max_model_len=33, page_size=16, max_num_seqs=3)
    assert (config.pages_per_seq, config.pool_pages) == (3, 10)


def test_each_k_has_a_round_and_plain_decoding_a_narrow_one() -> None:
    """The engine that does not choose has the state's width alone."""
    assert EngineConfig().round_widths == (None,)
    table = EngineConfig(num_speculative_tokens_per_batch_size=((1, 2, 3), (3, 8, 0)))
    assert table.round_widths == (Widths(0, 1), Widths(0, 4), Widths(3, 4))
    adaptive = EngineConfig(num_speculative_tokens=2, adaptive=True)
    assert adaptive.round_widths == tuple(Widths(*w) for w in ((0, 1), (0, 3), (1, 3), (2, 3)))


def test_lookup_has_a_round_of_the_drafts_width_and_one_of_its_own() -> None:
    """Exact mode has one width. Trees, a choice of k and synthetic acceptance refuse lookup."""
    config = EngineConfig(num_lookup_tokens=6)
    assert config.round_widths == ((3, 7, 3), (3, 7, 6)) and config.width == 7
    assert [config.lookup_widths(n, 32).lookup for n in (0, 7, 8)] == [3, 3, 6]
    assert EngineConfig(num_lookup_tokens=6, exact=True).round_widths == ((3, 7, 6),)
    others: list[dict[str, Any]] = [
        {"eagle_topk": 2, "num_draft_tokens": 5},
        {"adaptive": True},
        {"rejection_sample_method": "block"},
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0},
    ]
    for other in others:
        with pytest.raises(ValueError, match="cannot be combined with lookup"):
            EngineConfig(num_lookup_tokens=6, **other)


@pytest.mark.parametrize(("nodes", "scratch"), [(12, 12), (4, 8)])
def test_a_tree_has_slots_for_all_its_nodes_behind_the_last_row(nodes: int, scratch: int) -> None:
    """4 nodes of 3 levels: the draft's own steps run 2 x 4 of them."""
    tree = EngineConfig(3, max_model_len=64, page_size=4, eagle_topk=4, num_draft_tokens=nodes)
    assert tree.rows_ahead(10, 64) == 10 + 4 + scratch
    assert tree.rows_ahead(62, 64) == 64 + scratch == 4 * tree.pages_per_seq
    assert EngineConfig(3, max_model_len=64).rows_ahead(60, 64) == 64


@pytest.mark.parametrize(
    ("length", "k", "rates"),
    [
        (1.0, 3, (0.0, 0.0, 0.0)),
        (2.0, 3, (1.0, 0.0, 0.0)),
        (2.88, 3, (1.0, 0.88, 0.0)),
        (4.0, 3, (1.0, 1.0, 1.0)),
        (3.5, 6, (1.0, 1.0, 0.5, 0.0, 0.0, 0.0)),
    ],
)
def test_a_synthetic_length_is_the_schedule_of_least_variance(
    length: float, k: int, rates: tuple[float, ...]
) -> None:
    method = speculation_method("synthetic", k, length)
    assert method.synthetic_acceptance_rates == pytest.approx(rates)
    assert 1 + sum(method.synthetic_acceptance_rates or ()) == pytest.approx(length)
