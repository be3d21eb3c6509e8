"""Engine configuration: sizes, scales and modes that are fixed when programs compile. No JAX."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from eagle3_jax.speculative.method import (
    DRAFT_SAMPLE_METHODS,
    Lookup,
    SpeculationMethod,
    Widths,
    speculation_method,
    tree_shape,
)


@dataclass(frozen=True)
class KVScales:
    """One scale per pool, in pool order; raises ValueError unless all are positive and finite.

    A target has one pool per layer. A draft has one with latent attention, else keys and values.
    """

    target: tuple[float, ...]
    draft: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        bad = [scale for scale in (*self.target, *self.draft) if not 0 < scale < math.inf]
        if bad:
            raise ValueError(f"factors of a KV cache must be positive and finite, got {bad[0]}")


def pool_scales(given: float | KVScales, target_pools: int, draft_pools: int) -> KVScales:
    """Return the scale of each pool; draft scales are ignored without a draft.

    Raises ValueError if the counts of scales and pools differ.
    """
    if not isinstance(given, KVScales):
        return KVScales((given,) * target_pools, (given,) * draft_pools)
    found = len(given.target), len(given.draft) if draft_pools else 0
    if found != (target_pools, draft_pools):
        raise ValueError(
            f"kv_cache_scale has factors for {found[0]} pools of the target and {found[1]} of the "
            f"draft; there are {target_pools} and {draft_pools}: measure them for this pair "
            "(eagle3-bench accept --measure-kv-scales)"
        )
    return given if draft_pools else KVScales(given.target)


OPERATIONS = (
    *("absorb_query", "add_norm", "attend_share", "cache_heads", "cache_latents", "gated_matmul"),
    *("gqa_decode", "gqa_share", "grouped_mlp", "head_squares", "item_attention"),
    *("joint_matmul", "logits_argmax", "matmul", "mla_decode", "mla_prefill", "mla_prefill_part"),
    *("route", "router_logits", "share_values"),
)


BatchSizeTable = tuple[tuple[int, int, int], ...]
"""Rows of (first batch size, last batch size, k), ascending."""


def check_table(rows: Sequence[Sequence[int]], most: int) -> BatchSizeTable:
    """Sort rows; raise ValueError unless they start at 1, do not overlap and have k in 0..most."""
    if not rows or any(len(row) != 3 or any(type(n) is not int for n in row) for row in rows):
        raise ValueError(
            "num_speculative_tokens_per_batch_size must be rows of three integers, "
            f"[first batch size, last batch size, k]; got {rows!r}"
        )
    table = tuple((low, high, k) for low, high, k in sorted(map(tuple, rows)))
    if table[0][0] != 1:
        raise ValueError(
            "num_speculative_tokens_per_batch_size must begin at batch size 1; its first row "
            f"begins at {table[0][0]}"
        )
    for low, high, k in table:
        if low > high or not 0 <= k <= most:
            raise ValueError(
                "num_speculative_tokens_per_batch_size: a row is [first, last, k] with first <= "
                f"last and k in 0..num_speculative_tokens={most}; got {[low, high, k]}"
            )
    for before, after in pairwise(table):
        if after[0] <= before[1]:
            raise ValueError(
                "num_speculative_tokens_per_batch_size: rows must not overlap; "
                f"got {list(before)} and {list(after)}"
            )
    return table


def expand_table(table: BatchSizeTable, max_num_seqs: int) -> tuple[int, ...]:
    """Return k of each batch size 1..max_num_seqs; uncovered sizes use the previous row."""
    return tuple(
        next(k for low, _, k in reversed(table) if low <= size)
        for size in range(1, max_num_seqs + 1)
    )


MAX_SPECULATIVE_TOKENS = 8
MAX_LOOKUP_TOKENS = 32
MAX_PROMPT_LOOKUP = 32
WIDE_SHARE = 4
"""A round is as wide as lookup allows if at least one sequence of so many copies itself. A wide
round of 9 rows costs all sequences 1.17 to 1.32 times one of 4 rows (eagle3-plan, Kimi-K2.5 on 8
MI355X, model), and about doubles the tokens of those that copy themselves."""
CHOICES = {
    "kv_cache_dtype": ("auto", "bfloat16", "fp8"),
    "mm_draft_embedding": ("pad", "target"),
    "mm_encoder_tp_mode": ("data", "weights"),
}
LEAST = {
    **dict.fromkeys(("kv_offloading_bytes", "mm_encoder_cache_tokens"), 0),
    **dict.fromkeys(("max_num_seqs", "page_size", "prefill_chunk"), 1),
    **dict.fromkeys(("decode_context_parallel_size", "data_parallel_size"), 1),
    **{"kv_offloading_least_tokens": 1, "max_model_len": 2},
}


@dataclass(frozen=True)
class EngineConfig:
    """Sizes and modes of one engine. Raises ValueError for sizes that cannot work.

    Attributes:
        num_speculative_tokens: Drafts per round (k), 0..8.
        max_model_len: Maximum tokens of prompt + answer.
        num_pages: KV pages including scratch; None holds max_num_seqs full sequences.
        prefill_chunk: Prompt tokens per prefill program.
        batch_buckets: Compiled batch sizes; None doubles up to max_num_seqs.
        exact: Use one bucket, so that a request's bits depend on itself alone.
        enable_prefix_caching: Reuse KV pages of sequences with the same prefix.
        enable_structured_outputs: Compile the programs of grammars if grammars are available.
        rejection_sample_method, synthetic_*: See eagle3_jax.speculative.method.
        draft_sample_method: `probabilistic` samples drafts; `greedy` takes the draft's best tokens.
        num_speculative_tokens_per_batch_size: Rows (first batch size, last, k' <= k).
        adaptive: Choose k' <= k by measurement. Each possible k' has its own programs.
        eagle_topk, num_draft_tokens: Draft trees of k levels, with SGLang's meanings; topk 1 is a
            chain (eagle3_jax.speculative.method).
        num_lookup_tokens: Tokens that are drafted in place of the draft's chain where a sequence's
            last tokens occurred before; 0 turns lookup off (eagle3_jax.speculative.lookup).
        prompt_lookup_min, prompt_lookup_max: Number of last tokens that must have occurred.
        kv_cache_dtype: `auto` (the model's), `bfloat16`, or `fp8` (e4m3fn times kv_cache_scale).
        kv_cache_scale: One scale for all pools or one per pool; fp8 needs it.
        kernels: Implementation of operations, None for the device's own (pallas_kernels.dispatch).
        xla_kernels: Operations whose kernel is off; XLA compiles their reference.
        xla_autotune: XLA times its own kernels on the GPU and keeps the fastest, so that programs
            may differ between starts.
        decode_context_parallel_size: Neighbours D that divide a page of latents or of a shared KV
            head, so that it has page_size * D tokens. D divides the devices that need the page.
        kv_offloading_bytes: Host memory for evicted pages, over all devices; 0 for none.
        kv_offloading_least_tokens: Minimum cached tokens to load instead of prefilling them.
        kv_offloading_dir, kv_offloading_dir_bytes: Directory that keeps the host's pages after the
            engine ends, and its size limit.
        mm_draft_embedding: Draft input at images: `pad` is the placeholder id, as in vLLM, and
            `target` the target's row, as in SGLang.
        mm_encoder_cache_tokens: Image tokens whose features devices keep, the maximum of one image;
            0 for those of a prefill chunk and two of the model's largest images.
        mm_encoder_tp_mode: `data` divides images over devices with whole towers; `weights` divides
            the tower, and every device sees every image.
        data_parallel_size: Replicas, each with these sizes, that share only routed experts.
    """

    num_speculative_tokens: int = 3
    max_model_len: int = 1024
    max_num_seqs: int = 8
    page_size: int = 16
    num_pages: int | None = None
    prefill_chunk: int = 64
    batch_buckets: tuple[int, ...] | None = None
    exact: bool = False
    enable_prefix_caching: bool = True
    enable_structured_outputs: bool = True
    rejection_sample_method: str = "coupled"
    draft_sample_method: str = "probabilistic"
    synthetic_acceptance_length: float | None = None
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    num_speculative_tokens_per_batch_size: BatchSizeTable | None = None
    adaptive: bool = False
    eagle_topk: int = 1
    num_draft_tokens: int | None = None
    num_lookup_tokens: int = 0
    prompt_lookup_min: int = 3
    prompt_lookup_max: int = 6
    kv_cache_dtype: str = "auto"
    kv_cache_scale: float | KVScales | None = None
    kernels: str | None = None
    xla_kernels: tuple[str, ...] = ()
    xla_autotune: bool = False
    decode_context_parallel_size: int = 1
    kv_offloading_bytes: int = 0
    kv_offloading_least_tokens: int = 1
    kv_offloading_dir: str | None = None
    kv_offloading_dir_bytes: int = 0
    mm_draft_embedding: str = "pad"
    mm_encoder_cache_tokens: int = 0
    mm_encoder_tp_mode: str = "data"
    data_parallel_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"num_speculative_tokens must be 0..{MAX_SPECULATIVE_TOKENS}, "
                f"got {self.num_speculative_tokens}"
            )
        for name, least in LEAST.items():
            if (given := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, got {given}")
        for name, known in CHOICES.items():
            if (given := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}, got {given!r}")
        if self.pool_pages - 1 < self.pages_per_seq:
            raise ValueError(
                f"num_pages must be at least {self.pages_per_seq + 1}: one sequence of "
                f"{self.max_model_len} tokens in pages of {self.page_tokens}, and the scratch "
                f"page; got {self.num_pages}"
            )
        if max(self.buckets) != self.max_num_seqs or min(self.buckets) < 1:
            raise ValueError(
                f"batch_buckets must be positive and end at max_num_seqs={self.max_num_seqs}, "
                f"got {self.batch_buckets}"
            )
        method = self.method.rejection_sample_method
        if self.exact and method != "coupled":
            raise ValueError(
                "exact mode promises the tokens of plain decoding, which only "
                f"rejection_sample_method 'coupled' keeps; got {method!r}"
            )
        if self.exact and self.xla_autotune:
            raise ValueError(
                "exact mode needs the same programs at every start, and autotuning may choose "
                "others: leave xla_autotune out"
            )
        unknown = [name for name in self.xla_kernels if name not in OPERATIONS]
        if unknown:
            raise ValueError(
                f"xla_kernels must be among {', '.join(OPERATIONS)}; got {', '.join(unknown)}"
            )
        self._check_cache()
        self._check_choice()
        if self.method.tree:
            self._check_tree()
        if self.num_lookup_tokens:
            self._check_lookup()

    def _check_cache(self) -> None:
        if self.kv_offloading_bytes and not self.enable_prefix_caching:
            raise ValueError(
                "kv_offloading_bytes stores pages of the prefix cache, which is off: "
                "leave one of the two out"
            )
        if self.kv_offloading_bytes and self.data_parallel_size > 1:
            raise ValueError(
                "kv_offloading_bytes keeps the pages of one replica: data_parallel_size must be 1, "
                f"got {self.data_parallel_size}"
            )
        if self.kv_offloading_dir and not self.kv_offloading_bytes:
            raise ValueError(
                "kv_offloading_dir needs kv_offloading_bytes of at least one page, got 0"
            )
        if bool(self.kv_offloading_dir) != (self.kv_offloading_dir_bytes > 0):
            raise ValueError("kv_offloading_dir and kv_offloading_dir_bytes: give both, got one")
        scale, is_float8 = self.kv_cache_scale, self.kv_cache_dtype == "fp8"
        if scale is None and is_float8:
            raise ValueError(
                "kv_cache_dtype fp8 needs kv_cache_scale: measured scales (eagle3-bench accept "
                "--measure-kv-scales) or one number for all pools"
            )
        if scale is not None and not is_float8:
            raise ValueError(
                f"kv_cache_scale needs kv_cache_dtype fp8, got {self.kv_cache_dtype}: leave it out"
            )
        if isinstance(scale, int | float) and not 0 < scale < math.inf:
            raise ValueError(f"kv_cache_scale must be positive, got {scale}")

    def _check_tree(self) -> None:
        modes = {
            "exact mode": self.exact,
            "decode_context_parallel_size": self.decode_context_parallel_size > 1,
            "a choice of k (adaptive or by batch size)": self.chooses_k,
            f"rejection_sample_method {self.rejection_sample_method!r}": (
                self.rejection_sample_method != "coupled"
            ),
        }
        for name in filter(modes.get, modes):
            raise ValueError(
                f"{name} needs drafts in chains: eagle_topk must be 1, got {self.eagle_topk}"
            )

    def _check_lookup(self) -> None:
        k = self.num_speculative_tokens
        if not max(1, k) <= self.num_lookup_tokens <= MAX_LOOKUP_TOKENS:
            raise ValueError(
                f"num_lookup_tokens must be 0 or num_speculative_tokens={k}..{MAX_LOOKUP_TOKENS}; "
                f"got {self.num_lookup_tokens}"
            )
        shortest, longest = self.prompt_lookup_min, self.prompt_lookup_max
        if not 1 <= shortest <= longest <= MAX_PROMPT_LOOKUP:
            raise ValueError(
                "prompt_lookup_min and prompt_lookup_max must be 1 <= min <= max <= "
                f"{MAX_PROMPT_LOOKUP}; got {shortest} and {longest}"
            )
        modes = {
            f"eagle_topk {self.eagle_topk}": self.method.tree is not None,
            "a choice of k (adaptive or by batch size)": self.chooses_k,
            f"rejection_sample_method {self.rejection_sample_method!r}": (
                self.rejection_sample_method in ("block", "synthetic")
            ),
        }
        for name in filter(modes.get, modes):
            raise ValueError(
                f"{name} cannot be combined with lookup, whose chains have lengths of their own: "
                f"num_lookup_tokens must be 0, got {self.num_lookup_tokens}"
            )

    def _check_choice(self) -> None:
        table = self.num_speculative_tokens_per_batch_size
        if table is not None:
            check_table(table, self.num_speculative_tokens)
        if table is not None and self.adaptive:
            raise ValueError("give num_speculative_tokens_per_batch_size or adaptive, not both")
        name = "adaptive" if self.adaptive else "num_speculative_tokens_per_batch_size"
        if self.chooses_k and self.num_speculative_tokens == 0:
            raise ValueError(f"num_speculative_tokens must be at least 1 with {name}, got 0")
        if self.exact and self.chooses_k:
            raise ValueError(f"exact mode needs the same k in every round: leave {name} out")
        if self.method.rejection_sample_method == "synthetic" and self.chooses_k:
            raise ValueError(
                f"synthetic acceptance needs the same k in every round, which {name} changes: "
                "leave one of them out"
            )

    @cached_property
    def method(self) -> SpeculationMethod:
        """Speculation method; raises ValueError if fields contradict each other."""
        method = speculation_method(
            self.rejection_sample_method,
            self.num_speculative_tokens,
            self.synthetic_acceptance_length,
            self.synthetic_acceptance_rates,
        )
        if (drafts := self.draft_sample_method) not in DRAFT_SAMPLE_METHODS:
            known = " or ".join(DRAFT_SAMPLE_METHODS)
            raise ValueError(f"draft_sample_method must be {known}; got {drafts!r}")
        tree = tree_shape(self.eagle_topk, self.num_draft_tokens, self.num_speculative_tokens)
        lookup = Lookup(self.prompt_lookup_min, self.prompt_lookup_max)
        return replace(
            method,
            tree=tree,
            greedy_drafts=drafts == "greedy",
            lookup=lookup if self.num_lookup_tokens else None,
        )

    @property
    def chooses_k(self) -> bool:
        """True if rounds may draft fewer tokens than num_speculative_tokens."""
        return self.adaptive or self.num_speculative_tokens_per_batch_size is not None

    @property
    def draft_counts(self) -> tuple[int, ...]:
        """Every k that a round may have, ascending."""
        if self.adaptive:
            return tuple(range(self.num_speculative_tokens + 1))
        if self.num_speculative_tokens_per_batch_size is None:
            return (self.num_speculative_tokens,)
        return tuple(sorted(set(self.k_by_batch_size)))

    @property
    def k_by_batch_size(self) -> tuple[int, ...]:
        """The table's k for 1..max_num_seqs sequences; empty without a table."""
        rows = self.num_speculative_tokens_per_batch_size
        if rows is None:
            return ()
        return expand_table(check_table(rows, self.num_speculative_tokens), self.max_num_seqs)

    @property
    def round_widths(self) -> tuple[Widths | None, ...]:
        """Widths that rounds are compiled for; None if there is only the state's.

        Plain decoding (k = 0) has a program for sequences whose last round was plain too, because
        the widest first pass would be mostly waste. With lookup a narrow round is as wide as the
        draft's chain; exact mode has the wide one alone.
        """
        if self.num_lookup_tokens:
            return (self._wide,) if self.exact else (self._narrow, self._wide)
        if not self.chooses_k:
            return (None,)
        plain = (Widths(0, 1),) if 0 in self.draft_counts else ()
        return (*plain, *(Widths(k, self.width) for k in self.draft_counts))

    @property
    def _narrow(self) -> Widths:
        k = self.num_speculative_tokens
        return Widths(k, self.width, max(k, 1))

    @property
    def _wide(self) -> Widths:
        return Widths(self.num_speculative_tokens, self.width, self.num_lookup_tokens)

    def lookup_widths(self, copying: int, members: int) -> Widths:
        """Return the widths of a round of `members` sequences, `copying` of which copy themselves.

        A wide round costs all of them, and gives a few of them more tokens.
        """
        wide = self.exact or (copying and copying * WIDE_SHARE >= members)
        return self._wide if wide else self._narrow

    @property
    def split_widths(self) -> Widths | None:
        """Widths of two-program rounds; None without lookup, because they have the state's."""
        return self._wide if self.num_lookup_tokens else None

    @property
    def width(self) -> int:
        """Maximum tokens that a round commits per sequence: its drafts and the target's token."""
        return self.most_drafts(has_draft=True) + 1

    def most_drafts(self, *, has_draft: bool) -> int:
        """Return the maximum drafts of a sequence's round, made by a draft model or looked up."""
        return max(self.num_speculative_tokens if has_draft else 0, self.num_lookup_tokens)

    @property
    def verified_rows(self) -> int:
        """Rows per sequence that the target runs in a round: a chain's rows or a tree's nodes."""
        return self.method.tree.num_draft_tokens if self.method.tree else self.width

    def rows_ahead(self, known: int, limit: int) -> int:
        """Return the KV rows that a sequence may need for two rounds, the first one unread.

        `known` counts its committed rows, `limit` its maximum tokens. A chain keeps to the limit; a
        tree has slots for all its nodes after the last possible row.
        """
        tree = self.method.tree
        if tree is None:
            return min(known + 2 * self.width, limit)
        return min(known + self.width, limit) + tree.scratch_rows(self.num_speculative_tokens)

    @property
    def pages_per_seq(self) -> int:
        """Width of the page table."""
        return math.ceil(self.rows_ahead(self.max_model_len, self.max_model_len) / self.page_tokens)

    @property
    def page_tokens(self) -> int:
        """Tokens of a page over all devices that share it; the host's unit of pages."""
        return self.page_size * self.decode_context_parallel_size

    @property
    def pool_pages(self) -> int:
        """Pages in every pool, scratch page included."""
        full = self.max_num_seqs * self.pages_per_seq + 1
        return full if self.num_pages is None else self.num_pages

    @cached_property
    def buckets(self) -> tuple[int, ...]:
        """Compiled batch sizes, ascending."""
        if self.exact:
            return (self.max_num_seqs,)
        if self.batch_buckets is not None:
            return tuple(sorted(self.batch_buckets))
        doubling = [2**i for i in range(self.max_num_seqs.bit_length())]
        return (*(b for b in doubling if b < self.max_num_seqs), self.max_num_seqs)

    @property
    def split_buckets(self) -> tuple[int, ...]:
        """Batch sizes of two-program rounds: few, because there are two programs of each."""
        return tuple(sorted({self.buckets[0], self.buckets[-1]}))

    def split_bucket_for(self, batch: int) -> int:
        """Return the smallest split bucket that holds `batch` sequences."""
        return next(size for size in self.split_buckets if size >= batch)

    def bucket_for(self, batch: int) -> int:
        """Return the smallest compiled batch size that holds `batch` sequences."""
        return next(b for b in self.buckets if b >= batch)
