"""Measure accept length on tasks, by category, with a local engine or an OpenAI server."""

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from convert.text.tokenizer import Tokenizer
from eagle3_jax.engine import EngineConfig, EngineStats, Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.acceptance.tasks import ChatMessage, Task, is_right
from eagle3_tools.bench.common.accept_length import AcceptCounts, AcceptRow, distinct_bigrams
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.load.counters import Counts, between, fetch_counts
from eagle3_tools.bench.load.http_client import Address, request
from eagle3_tools.make_demo.corpus import correct
from serve.engine.messages import EngineLike
from serve.images.reader import ImageReader, NoImages, Prompt, place
from serve.openai.content import read_content, sources_in
from serve.pair.loading import LoadedPair, build_engine, fit_length

OVERALL = "overall"
ANSWER_TOKENS = 160
"""Limit of an answer. The corpus has no longer answer, so a longer one is wrong anyway."""
TURN_TOKENS = 16
"""Upper bound of the template's tokens around a turn and its answer."""
CHAT = "/v1/chat/completions"
SYNTHETIC = "x-synthetic-acceptance-length"


@dataclass(frozen=True)
class Said:
    """One answer. `token_ids` is None if the server does not return token ids."""

    text: str
    tokens: int
    token_ids: list[int] | None


@dataclass(frozen=True)
class PromptMaker:
    """Makes prompts from chats as the server does. `images` reads images within its limits."""

    tokenizer: Tokenizer
    images: ImageReader | NoImages

    def __call__(self, messages: Sequence[ChatMessage], tools: Sequence[Any]) -> Prompt:
        """Apply the chat template and place the images; raise ValueError for a refused image."""
        contents = [read_content(message.get("content")) for message in messages]
        told = [
            {**message, "content": [part.for_template() for part in content]}
            if isinstance(content, list)
            else {**message, "content": content}
            for message, content in zip(messages, contents, strict=True)
        ]
        ids = self.tokenizer.encode_chat(told, tools=list(tools) or None)
        sources = sources_in(contents)
        if not sources:
            return Prompt(ids)
        found = asyncio.run(self.images.read(sources))
        return place(ids, [found[source] for source in sources], self.images.placeholder)


class Answerer(Protocol):
    """A model that answers conversations, and its acceptance counters."""

    def ask(self, conversations: Sequence[tuple[Sequence[ChatMessage], Task]]) -> list[Said]: ...
    def mark(self) -> Any: ...
    def since(self, mark: Any) -> AcceptCounts: ...


def accept_tables(
    pair: LoadedPair,
    make_prompt: PromptMaker,
    tasks: Sequence[Task],
    config: EngineConfig,
    samplings: Sequence[SamplingParams],
    max_model_len: int | None = None,
) -> list[list[AcceptRow]]:
    """Measure accept length with one engine under each of the sampling options.

    Without `max_model_len` the context fits the tasks.
    """
    room = max_model_len or _room(pair, make_prompt, tasks, samplings[0].max_tokens or 0)
    fitting = fit_length(config, room, pair.target.config)
    engine = build_engine(pair, fitting, clock=time.perf_counter)
    answerers = (EngineAnswerer(engine, make_prompt, sampling, room) for sampling in samplings)
    return [measure_tasks(one, tasks, pair.tokenizer) for one in answerers]


def held_out_tables(
    pair: LoadedPair,
    tasks: Sequence[Task],
    config: EngineConfig,
    temperatures: Iterable[float],
    max_model_len: int | None = None,
) -> list[list[AcceptRow]]:
    """Call `accept_tables` for held-out prompts at each of the temperatures."""
    samplings = [
        SamplingParams(temperature=temperature, max_tokens=ANSWER_TOKENS, seed=0)
        for temperature in temperatures
    ]
    make_prompt = PromptMaker(pair.tokenizer, NoImages())
    return accept_tables(pair, make_prompt, tasks, config, samplings, max_model_len)


def _room(
    pair: LoadedPair, make_prompt: PromptMaker, tasks: Sequence[Task], max_tokens: int
) -> int:
    """Return the context that the longest conversation needs, at most the model's."""

    def most(task: Task) -> int:
        begun = make_prompt(task.messages, task.tools).ids
        later = sum(len(pair.tokenizer.encode(text)) + TURN_TOKENS for text in task.later)
        return len(begun) + later + (1 + len(task.later)) * max_tokens

    return min(max(map(most, tasks)), pair.target.config.max_position_embeddings)


def measure_tasks(
    answerer: Answerer, tasks: Sequence[Task], tokenizer: Tokenizer | None = None
) -> list[AcceptRow]:
    """Return a row for each category, then the overall one; judge tasks with an expected answer.

    With the answers' `tokenizer`, conversations of the corpus are judged too.
    """
    start, rows = answerer.mark(), list[AcceptRow]()
    everything, judged = list[Said](), list[bool]()
    for category in dict.fromkeys(task.category for task in tasks):
        chosen = [task for task in tasks if task.category == category]
        mark = answerer.mark()
        said = _converse(answerer, chosen)
        right = list(_judge(chosen, said, tokenizer))
        rows.append(_row(category, len(chosen), said, right, answerer.since(mark)))
        everything += said
        judged += right
    return [*rows, _row(OVERALL, len(tasks), everything, judged, answerer.since(start))]


def _judge(
    tasks: Sequence[Task], said: Sequence[Said], tokenizer: Tokenizer | None
) -> Iterator[bool]:
    """Yield whether each first answer is correct, for the tasks that can be judged."""
    for task, answer in zip(tasks, said, strict=False):
        if task.expected is not None:
            yield is_right(answer.text, task.expected)
        elif task.conversation and tokenizer and answer.token_ids is not None:
            # The corpus writes special tokens, but no final EOS.
            ids = answer.token_ids
            kept = ids[:-1] if ids and ids[-1] in tokenizer.eos_token_ids else ids
            text = tokenizer.decode(kept, skip_special=False)
            yield correct(task.category, task.conversation, text)


def _converse(answerer: Answerer, tasks: Sequence[Task]) -> list[Said]:
    """Ask every first turn at once, then every second turn after the first answers, and so on."""
    said: list[Said] = []
    under_way = [(list(task.messages), task) for task in tasks]
    for turn in range(1 + max(len(task.later) for task in tasks)):
        answers = answerer.ask(under_way)
        said += answers
        going_on = []
        for (messages, task), answer in zip(under_way, answers, strict=True):
            if turn < len(task.later):
                messages.append({"role": "assistant", "content": answer.text})
                messages.append({"role": "user", "content": task.later[turn]})
                going_on.append((messages, task))
        under_way = going_on
    return said


def _row(
    category: str,
    prompts: int,
    said: Sequence[Said],
    right: Sequence[bool],
    counts: AcceptCounts,
) -> AcceptRow:
    known = [answer.token_ids for answer in said if answer.token_ids is not None]
    return AcceptRow(
        category=category,
        prompts=prompts,
        tokens=sum(answer.tokens for answer in said),
        counts=counts,
        accept_length=counts.accept_length,
        per_position=counts.per_position,
        right=sum(right) / len(right) if right else math.nan,
        histogram=counts.histogram if counts.per_position else (),
        distinct_bigrams=distinct_bigrams(known) if len(known) == len(said) else math.nan,
    )


@dataclass
class EngineAnswerer:
    """Answers from a warm engine in this process; the i-th answer has the sampling seed + i."""

    engine: EngineLike
    make_prompt: PromptMaker
    sampling: SamplingParams
    max_model_len: int
    _asked: int = 0

    def ask(self, conversations: Sequence[tuple[Sequence[ChatMessage], Task]]) -> list[Said]:
        """Answer every conversation until it ends or the context is full."""
        requests = []
        for messages, task in conversations:
            prompt = self.make_prompt(messages, task.tools)
            room = self.max_model_len - len(prompt.ids)
            if room < 1:
                raise ValueError(
                    f"a conversation of {len(prompt.ids)} tokens leaves no room in a context of "
                    f"{self.max_model_len}"
                )
            limit = min(self.sampling.max_tokens or room, room)
            seed = (self.sampling.seed or 0) + self._asked
            sampling = replace(self.sampling, max_tokens=limit, seed=seed)
            requests.append(Request(f"{self._asked}", prompt.ids, sampling, images=prompt.images))
            self._asked += 1
        answers = drive(self.engine, requests)
        return [
            Said(answer.text, len(answer.token_ids), answer.token_ids)
            for answer in answers.values()
        ]

    def mark(self) -> EngineStats:
        return self.engine.stats()

    def since(self, mark: EngineStats) -> AcceptCounts:
        """Return the counts since `mark`."""
        return AcceptCounts.between(mark, self.engine.stats())


@dataclass
class ServerAnswerer:
    """Answers from a server with OpenAI's chat endpoint.

    Counts come from metrics under vLLM's names, all traffic included, else from responses' `spec`.
    """

    address: Address
    model: str
    sampling: SamplingParams
    concurrency: int
    _asked: int = 0
    _rounds: list[int] = field(default_factory=lambda: [0, 0])
    """Rounds and accepted tokens, summed over the responses."""

    def ask(self, conversations: Sequence[tuple[Sequence[ChatMessage], Task]]) -> list[Said]:
        """Send all conversations; raise OSError on failure, ValueError on synthetic acceptance."""
        return asyncio.run(self._ask(conversations))

    async def _ask(self, conversations: Sequence[tuple[Sequence[ChatMessage], Task]]) -> list[Said]:
        gate = asyncio.Semaphore(self.concurrency)

        async def one(body: Mapping[str, Any]) -> Said:
            async with gate:
                return self._read(await self._post(body))

        bodies = [self._body(messages, task) for messages, task in conversations]
        return list(await asyncio.gather(*map(one, bodies)))

    def _body(self, messages: Sequence[ChatMessage], task: Task) -> dict[str, Any]:
        self._asked += 1
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
            "seed": (self.sampling.seed or 0) + self._asked - 1,
            "return_token_ids": True,
        }
        return body | ({"tools": task.tools} if task.tools else {})

    async def _post(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        reply = await request(self.address, "POST", CHAT, body)
        if SYNTHETIC in reply.headers:
            raise ValueError("synthetic acceptance: the answers are not the model's")
        return reply.json()

    def _read(self, answer: Mapping[str, Any]) -> Said:
        choice = answer["choices"][0]
        spec = choice.get("spec") or {}
        if spec.get("accept_length") is not None:
            self._rounds[0] += spec["rounds"]
            self._rounds[1] += spec["accepted"]
        text = choice["message"].get("content") or ""
        return Said(text, answer["usage"]["completion_tokens"], choice.get("token_ids"))

    def mark(self) -> tuple[Counts, tuple[int, ...]]:
        return asyncio.run(fetch_counts(self.address)), tuple(self._rounds)

    def since(self, mark: tuple[Counts, tuple[int, ...]]) -> AcceptCounts:
        """Return the counts since `mark`; raise ValueError if no draft tokens were verified."""
        counts = between(mark[0], asyncio.run(fetch_counts(self.address)))
        if counts is not None:
            return counts
        rounds, accepted = (new - old for new, old in zip(self._rounds, mark[1], strict=True))
        if not rounds:
            raise ValueError("the server reports no draft, neither at /metrics nor in responses")
        return AcceptCounts(rounds, 0, accepted, ())
