"""Several drafts for one target: accept length of each, and that none changes an answer."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flax import nnx
from rich.console import Console

from convert.files.safetensors_files import DTYPES
from convert.hub.checkpoint import find_checkpoint
from convert.published.directory import open_published
from convert.quantize.run import prepare, write
from convert.quantize.schemes import scheme_of
from convert.store.reader import is_store, open_store
from eagle3_jax.engine import Request
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.sampling.params import SamplingParams
from serve.bench.common.accept_length import ANSWER_TOKENS, AcceptRow, measure_accept
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import conditions
from serve.bench.common.drive import EIGHT_SLOTS
from serve.bench.common.flags import add_shared, check_drafting, use_embedded_pair
from serve.bench.common.held_out import HeldOutPrompt, held_out
from serve.bench.equality.ties import Difference, Scorer, describe
from serve.demo import demo_draft_dir, demo_latent_draft_dir
from serve.options.checkpoint import DEFAULTS, LoadOptions
from serve.pair.loading import LoadedPair, build_engine, with_draft
from serve.pair.notices import Say, say_on_stderr
from serve.text_table import text_table

QUANTISED = {"FP8": "ptpc_fp8", "INT4": "int4"}
"""Name -> scheme of eagle3-quantize."""
AS_WRITTEN = LoadOptions(int4_order="linear")


@dataclass(frozen=True)
class DraftFiles:
    """A draft to be measured, how tables call it and how it is loaded."""

    name: str
    directory: Path
    load: LoadOptions = DEFAULTS


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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """k, how many prompts, and other drafts."""
    use_embedded_pair(parser)
    parser.set_defaults(check=check_drafting)
    add_shared(parser, "--num-speculative-tokens")
    add_shared(parser, "--prompts", default=8)
    add_shared(parser, "--rejection-sample-method")
    parser.add_argument(
        "--draft",
        dest="others",
        action="extend",
        nargs="+",
        default=[],
        metavar="DRAFT",
        help="other drafts of the embedded target: directories, or hub ids",
    )
    add_shared(parser, "--json")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares drafts of several forms."""
    found, pair = conditions(), given_pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts)
    with TemporaryDirectory(prefix="eagle3-drafts-") as into:
        drafts = [*embedded_drafts(Path(into), say_on_stderr), *named(flags.others)]
        result = compare_drafts(pair, drafts, prompts, flags.k)
    print_result(console, result)
    return finish(flags, "drafts", found, result)


def print_result(console: Console, result: DraftsRecord) -> None:
    """Accept length of every draft by category, and whether its answers are plain decoding's."""
    title = f"Drafts, {result.prompts} held-out prompts, k={result.num_speculative_tokens}"
    categories = [row.category for row in result.drafts[0].rows]
    headings = ("draft", "form", "MB", *categories, "identical", "tie", "different")
    table = text_table(title, headings, left=("draft", "form"))
    for draft in result.drafts:
        lengths = (f"{row.accept_length:.2f}" for row in draft.rows)
        answers = (f"{draft.identical}", f"{draft.ties}", f"{draft.different}")
        size = f"{draft.nbytes / 1e6:.2f}"
        table.add_row(draft.name, draft.form, size, *lengths, *answers)
    console.print(table)
    for draft in result.drafts:
        for difference in draft.differences:
            console.print(f"  {describe(difference)}")


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
        sizes = {"num_speculative_tokens": k, "max_model_len": length, **EIGHT_SLOTS}
        engine = build_engine(with_or_without, **sizes)
        return measure_accept(engine, pair.tokenizer, prompts, greedy)

    _, plain = answer(replace(pair, draft=None), 0)
    results = []
    for draft in drafts:
        loaded = with_draft(pair, draft.directory, draft.load, say=say)
        rows, answers = answer(loaded, k)
        requests = [
            Request(f"{draft.name}, prompt {i}", prompt.token_ids, greedy)
            for i, prompt in enumerate(prompts)
        ]
        differences = scorer.differences(requests, plain, answers)
        assert loaded.draft is not None, "it was loaded just now"
        results.append(
            DraftResult(
                name=draft.name,
                form=form_of(loaded.draft, draft.directory),
                nbytes=sum(f.stat().st_size for f in draft.directory.rglob("*") if f.is_file()),
                rows=rows,
                compared=len(prompts),
                identical=len(prompts) - len(differences),
                ties=sum(difference.cause is not None for difference in differences),
                differences=differences,
            )
        )
        say(f"{draft.name}: accept length {results[-1].accept_length:.2f}")
    return DraftsRecord(k, len(prompts), results)


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
    return {DTYPES[w.tensor.dtype].name for w in plain if len(w.shape) == 2}


def embedded_drafts(into: Path, say: Say) -> Iterator[DraftFiles]:
    """Quantises into new directories in `into`; a draft that is not embedded is said, and left out.

    Raises FileNotFoundError without the embedded pair.
    """
    trained = demo_draft_dir()
    yield DraftFiles("BF16", trained)
    for name, scheme in QUANTISED.items():
        write(prepare(trained, into / scheme, scheme_of(scheme)))
        yield DraftFiles(name, into / scheme, AS_WRITTEN)
    try:
        yield DraftFiles("MLA", demo_latent_draft_dir())
    except FileNotFoundError as error:
        say(f"no MLA draft: {error}")


def named(others: Iterable[str]) -> Iterator[DraftFiles]:
    """Other drafts, each called as its directory or repository."""
    for other in others:
        yield DraftFiles(Path(other).name, find_checkpoint(other))
