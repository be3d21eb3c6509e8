"""Several drafts for one target: how much of each is accepted, and that none changes an answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flax import nnx

from convert.published import open_published
from convert.store import is_store, open_store
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.sampling_params import SamplingParams
from serve.bench.accept import ANSWER_TOKENS, AcceptRow, measure_accept
from serve.bench.embedded_drafts import DraftFiles
from serve.bench.held_out import HeldOutPrompt
from serve.bench.ties import Difference, Scorer
from serve.loading import LoadedPair, build_engine, with_draft
from serve.notices import Say, say_on_stderr

BATCH = 8
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class DraftResult:
    """One draft. rows: accept length by category, overall last; nbytes: of its directory.

    differences: the answers that are not plain decoding's; ties: those that a tie explains.
    """

    name: str
    form: str
    nbytes: int
    rows: list[AcceptRow]
    compared: int
    identical: int
    ties: int
    differences: list[Difference]

    @property
    def accept_length(self) -> float:
        """Over all prompts."""
        return self.rows[-1].accept_length

    @property
    def different(self) -> int:
        """Answers that differ without a tie."""
        return self.compared - self.identical - self.ties


@dataclass(frozen=True)
class DraftsRecord:
    """What `eagle3-bench drafts` found, greedily."""

    num_speculative_tokens: int
    prompts: int
    drafts: list[DraftResult]

    @property
    def holds(self) -> bool:
        """Whether every answer is plain decoding's, ties excepted."""
        return not any(draft.different for draft in self.drafts)


def compare_drafts(
    pair: LoadedPair,
    drafts: Iterable[DraftFiles],
    prompts: Sequence[HeldOutPrompt],
    k: int,
    *,
    max_tokens: int = ANSWER_TOKENS,
    say: Say = say_on_stderr,
) -> DraftsRecord:
    """Answers all prompts without a draft and with each; `say` hears of every draft as it ends."""
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    length = max(len(prompt.token_ids) for prompt in prompts) + max_tokens
    scorer = Scorer(pair.target, length)

    def answer(with_or_without: LoadedPair, k: int) -> tuple[list[AcceptRow], list[list[int]]]:
        engine = build_engine(
            with_or_without,
            num_speculative_tokens=k,
            max_model_len=length,
            max_num_seqs=BATCH,
            batch_buckets=(BATCH,),
        )
        return measure_accept(engine, pair.tokenizer, prompts, greedy)

    _, plain = answer(replace(pair, draft=None), 0)
    results = []
    for draft in drafts:
        loaded = with_draft(pair, draft.directory, draft.load, say=say)
        rows, answers = answer(loaded, k)
        found = [
            scorer.explain(f"{draft.name}, prompt {i}", prompt.token_ids, greedy, ours, theirs)
            for i, (prompt, ours, theirs) in enumerate(zip(prompts, plain, answers, strict=True))
        ]
        assert loaded.draft is not None, "it was loaded just now"
        results.append(_result(draft, loaded.draft, rows, found))
        say(f"{draft.name}: accept length {results[-1].accept_length:.2f}")
    return DraftsRecord(k, len(prompts), results)


def _result(
    files: DraftFiles,
    draft: Eagle3Draft,
    rows: list[AcceptRow],
    found: Sequence[Difference | None],
) -> DraftResult:
    differences = [difference for difference in found if difference]
    return DraftResult(
        name=files.name,
        form=form_of(draft, files.directory),
        nbytes=sum(file.stat().st_size for file in files.directory.rglob("*") if file.is_file()),
        rows=rows,
        compared=len(found),
        identical=len(found) - len(differences),
        ties=sum(difference.cause is not None for difference in differences),
        differences=differences,
    )


def form_of(draft: Eagle3Draft, directory: Path) -> str:
    """Attention, quantised weights x activations, and what the other matrices are stored in."""
    kernels = (m for _, m in nnx.iter_modules(draft) if isinstance(m, QuantizedKernel))
    formats = {f"{m.format.weights} x {m.format.activations}" for m in kernels}
    attention = "grouped" if draft.config.latent is None else "latent"
    return f"{attention}, " + " + ".join([*sorted(formats), *sorted(_float_dtypes(directory))])


def _float_dtypes(directory: Path) -> set[str]:
    """Of the matrices that are not quantised."""
    if is_store(directory):
        store = open_store(directory)
        quantised = store.manifest.origin.formats
        matrices = (p for p in store.parameters.values() if len(p.shape) == 2)
        return {p.dtype for p in matrices if p.path.rpartition(".")[0] not in quantised}
    plain = (w for w in open_published(directory).weights if w.form is None)
    return {DTYPES[w.tensor.dtype] for w in plain if len(w.shape) == 2}
