"""Accept length as vLLM counts it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from oracle_files import ORACLES

from convert import load_tokenizer
from eagle3_jax import SamplingParams
from eagle3_jax.engine import EngineStats, Request, RequestOutput, Round
from eagle3_jax.engine.programs.executor import Progress
from eagle3_tools.bench.acceptance.answerers import (
    OVERALL,
    EngineAnswerer,
    PromptMaker,
    measure_tasks,
)
from eagle3_tools.bench.acceptance.tasks import held_out_tasks
from eagle3_tools.bench.common.accept_length import AcceptCounts, distinct_bigrams
from eagle3_tools.make_demo.corpus import CATEGORIES, held_out_prompts
from serve.images.reader import NoImages

IDLE = EngineStats(
    num_running=0,
    num_waiting=0,
    kv_cache_usage=0.0,
    num_preemptions=0,
    rounds={},
    num_speculative_tokens=3,
    prompt_tokens=0,
    generation_tokens=0,
    free_pages=1,
    total_pages=1,
)


def round_of(verified: int, accepted: int) -> Round:
    return Round(verified, verified, verified, accepted, accepted + 1)


def test_accept_length_is_one_plus_accepted_over_drafts() -> None:
    earlier = {round_of(3, 0): 3, round_of(3, 1): 1, round_of(3, 3): 1}
    later = {round_of(3, 0): 2, round_of(3, 1): 3, round_of(2, 2): 1, round_of(3, 2): 2}
    before = replace(IDLE, rounds=earlier)
    after = replace(IDLE, rounds=Counter(earlier) + Counter(later) + Counter([round_of(3, 3)] * 2))
    counts = AcceptCounts.between(before, after)
    assert counts == AcceptCounts(10, 29, 15, (8, 5, 2))
    assert counts.accept_length == 2.5
    assert counts.per_position == (0.8, 0.5, 0.2)
    assert counts.histogram == (2, 3, 3, 2)


def test_no_drafts_commit_one_token_a_round() -> None:
    assert AcceptCounts(0, 0, 0, (0, 0)).accept_length == 1


class Answering:
    """An engine that answers request i at once with answers[i], in rounds of 2 drafts."""

    def __init__(self, answers: list[list[int]], accepted: list[int]) -> None:
        self._answers, self._accepted = answers, accepted
        self._waiting: list[Request] = []
        self._rounds: Counter[Round] = Counter()
        self._stats = replace(IDLE, num_speculative_tokens=2)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def started(self) -> Sequence[str]:
        return ()

    def warmup(self, progress: Progress | None = None) -> None: ...

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None: ...

    def reset_prefix_cache(self) -> bool:
        return False

    def step(self) -> list[RequestOutput]:
        name = self._waiting.pop(0).request_id
        tokens, accepted = self._answers[int(name)], self._accepted[int(name)]
        made = round_of(2, accepted)
        self._rounds[made] += 1
        self._stats = replace(
            self._stats,
            rounds=dict(self._rounds),
            generation_tokens=self._stats.generation_tokens + len(tokens),
        )
        return [RequestOutput(name, tuple(tokens), "", "stop", None, (made,), 1, 0)]

    def stats(self) -> EngineStats:
        return self._stats


def test_categories_are_counted_apart_and_together_and_answers_are_checked() -> None:
    tokenizer = load_tokenizer(ORACLES / "tokenizer")
    assert any(task.tools for task in held_out_tasks(20))
    asked = [held_out_prompts(category, 1)[0] for category in CATEGORIES]
    stop = tokenizer.eos_token_ids[0]
    answers = [[*tokenizer.encode(c.answer["content"]), stop] for c in asked]
    answers[1] = answers[0]
    accepted = [2, 0, 1, 1, 2]
    sampling = SamplingParams(temperature=0, max_tokens=200, seed=0)
    make_prompt = PromptMaker(tokenizer, NoImages())
    answerer = EngineAnswerer(Answering(answers, accepted), make_prompt, sampling, 1024)
    *rows, overall = measure_tasks(answerer, held_out_tasks(1), tokenizer)
    assert [row.category for row in rows] == list(CATEGORIES)
    assert [row.accept_length for row in rows] == [1 + a for a in accepted]
    assert [row.right for row in rows] == [1, 0, 1, 1, 1]
    assert overall.category == OVERALL
    assert overall.counts == AcceptCounts(5, 10, 6, (4, 2))
    assert overall.accept_length == 1 + 6 / 5
    assert overall.per_position == (0.8, 0.4)
    assert overall.tokens == sum(map(len, answers))
    assert overall.right == 0.8
    assert overall.histogram == (1, 2, 2)
    assert overall.prompts == 5


def test_repeated_pairs_of_tokens_are_no_new_bigrams() -> None:
    assert distinct_bigrams([[1, 2, 1, 2, 1], [2, 1], [7]]) == 2 / 5
    assert distinct_bigrams([[1], []]) == 0
