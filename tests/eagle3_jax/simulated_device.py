"""A stand-in for the runner: programs become Python on tokens, and every cache row is checked.

A "model" here is a function: the next token is a hash of seed and history. A cache row remembers
the history it was written for, so that a page with two owners, a lost page or a wrong table shows
as soon as the row is read. A draft's row at i remembers the history up to i+1, or that a draft step
made it up. In a history each token of an image is its feature, a number that no token id has.
Programs run at dispatch; reports are read when the engine reads them.
"""

import pickle
import zlib
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.engine import MOST_CHUNKS
from eagle3_jax.engine.grammars.masking import Masks
from eagle3_jax.engine.programs.choice import places
from eagle3_jax.engine.programs.runner import RowReport
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.engine.text import Tokenizer
from eagle3_jax.sampling.token_mask import open_masks
from eagle3_jax.speculative.state import NO_ROW
from eagle3_jax.speculative.tree import HostTree, chains_as_trees
from eagle3_jax.vision.item import ImageItem

VOCAB = 17


def next_token(history: Rows[int], seed: int, barred: Rows[int] = ()) -> int:
    """The token after `history`: half of them follow a short cycle, so that texts repeat."""
    bits = zlib.crc32(np.asarray([seed, *history], np.int64).tobytes())
    token = (history[-1] + 1) % VOCAB if bits & 1 else (bits >> 1) % VOCAB
    return next(t % VOCAB for t in range(token, token + VOCAB) if t % VOCAB not in barred)


def features_of(item: ImageItem) -> list[int]:
    """The features of an image, one number for each of its tokens."""
    return [VOCAB + zlib.crc32(item.digest + bytes([i])) for i in range(item.num_tokens)]


def with_features(request: Request, ids: Rows[int]) -> list[int]:
    """A prompt, and what follows it, with features in the place of placeholders."""
    found = list(ids)
    for image in request.images:
        found[image.start : image.end] = features_of(image.item)
    return found


@dataclass
class Slot:
    """The device's state of a sequence: all its tokens, of which the last has no KV yet."""

    tokens: list[int]
    sequence: Sequence
    max_len: int
    finished: bool
    num_accepted: int = 0

    def choose(self, history: list[int], mask: np.ndarray | None = None) -> int:
        """mask: one bit a token [words], where a grammar allows only some."""
        request = self.sequence.request
        early = len(history) < len(request.prompt_ids) + request.sampling.min_tokens
        barred = list(self.sequence.stop_ids if early else ())
        if mask is not None:
            barred += [token for token in range(VOCAB) if not mask[0] >> token & 1]
        return next_token(history, self.sequence.seed, barred)

    def commit(self, token: int) -> None:
        self.tokens.append(token)
        self.finished |= token in self.sequence.stop_ids or len(self.tokens) >= self.max_len


class SimulatedRunner:
    """Runner's interface over Python data."""

    def __init__(
        self,
        target: object,
        draft: object,
        config: EngineConfig,
        *,
        has_grammars: bool = False,
        peers: object,
        vision: object = None,
        images: object = None,
    ):
        assert peers is None, "several processes are not simulated"
        self.config = config
        self.has_draft = draft is not None
        self.drafts = config.num_speculative_tokens if draft else 0
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}
        self.draft_memory: dict[tuple[int, int], tuple[int, ...]] = {}
        self.host: dict[int, Any] = {}
        self.staged: dict[int, Any] = {}
        self.features: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        self.prefilled = 0
        self.slots: dict[int, Slot] = {}
        self.unread = 0

    def compile(self, progress: object = None) -> None: ...

    def prefill(self, chunks: Rows[ChunkPlan], masks: Masks | None = None) -> list[RowReport]:
        (chunk,) = chunks
        sequence, end = chunk.sequence, chunk.start + chunk.length
        assert 0 < chunk.length <= self.config.prefill_chunk
        if self.config.exact:
            assert chunk.start % self.config.prefill_chunk == 0, "the chunk is off the grid"
        self.prefilled += chunk.length
        prompt = self._encoded(chunk)
        self._check(sequence, prompt[: chunk.start], ahead=prompt)
        self._write(sequence, prompt[:end], chunk.start)
        self._write_draft(sequence, prompt[: end + 1], chunk.start)
        if not chunk.last:
            return []
        self.unread += 1
        slot = Slot(prompt, sequence, sequence.limit, False)
        self.slots[sequence.slot] = slot
        mask = masks.get(sequence.matcher) if masks and sequence.matcher else None
        slot.commit(slot.choose(slot.tokens, mask))
        slot.num_accepted = 0
        return [RowReport(slot.tokens[-1:], 0)]

    def _encoded(self, chunk: ChunkPlan) -> list[int]:
        """The prompt with features, which the chunk's rows name, as far as they are there."""
        sequence = chunk.sequence
        for item, rows in chunk.new_images:
            self.features |= zip(rows.tolist(), features_of(item), strict=True)
        prompt = with_features(sequence.request, sequence.prefill_ids)
        if chunk.feature_rows is not None:
            rows = chunk.feature_rows.tolist()
            for row, wanted in zip(rows, prompt[chunk.start :], strict=False):
                assert row == NO_ROW or self.features[row] == wanted, "another image's feature"
            text = sequence.prefill_ids[chunk.start :]
            for row, wanted, token in zip(rows[:-1], prompt[chunk.start :], text, strict=False):
                assert (row == NO_ROW) == (wanted == token), "an image without features"
        return prompt

    def round(
        self, members: Rows[Sequence], drafts: int, limits: Rows[int] | None = None
    ) -> list[RowReport]:
        assert self.unread <= 1 + MOST_CHUNKS, "more than one round was in flight"
        assert len({s.slot for s in members}) == len(members) <= self.config.max_num_seqs
        self.unread += 1
        most = limits or [drafts] * len(members)
        pairs = zip(members, most, strict=True)
        return [self._advance(sequence, min(limit, self.drafts)) for sequence, limit in pairs]

    def open_nodes(self, rows: int) -> np.ndarray:
        return open_masks(VOCAB, rows, self.config.num_speculative_tokens + 1)

    def propose(self, members: Rows[Sequence], masks: np.ndarray) -> np.ndarray:
        """Drafts [rows, k]: what the target would say without the masks behind the first."""
        rows = places(members, len(masks))
        drafts = np.zeros((len(masks), self.config.num_speculative_tokens), np.int32)
        for row, sequence in zip(rows, members, strict=True):
            slot = self.slots[sequence.slot]
            history = list(slot.tokens)
            for step in range(drafts.shape[1]):
                history.append(slot.choose(history, None if step else masks[row, 0]))
            drafts[row] = history[len(slot.tokens) :]
        return drafts

    def read_drafts(self, proposal: np.ndarray) -> HostTree:
        return chains_as_trees(proposal)

    def verify(
        self, members: Rows[Sequence], proposal: np.ndarray, tree: HostTree, masks: np.ndarray
    ) -> list[RowReport]:
        self.unread += 1
        rows = zip(places(members, len(masks)), members, strict=True)
        return [
            self._advance(sequence, self.drafts, tree.tokens[row, 1:], masks[row])
            for row, sequence in rows
        ]

    def read(self, report: list[RowReport]) -> list[RowReport]:
        self.unread -= 1
        return report

    page_bytes = 1
    fingerprint = bytes(32)
    copy_steps = 2
    """How often a copy is asked about before it is done."""

    def save_pages(self, pages: Rows[int], slots: Rows[int]) -> None:
        self.host |= {slot: self._rows_of(page) for page, slot in zip(pages, slots, strict=True)}
        self.asked |= dict.fromkeys(slots, 0)

    def stage_pages(self, slots: Rows[int]) -> None:
        assert not self.staged.keys() & set(slots), "a slot is staged for two pages at a time"
        self.staged |= {slot: self.host[slot] for slot in slots}
        self.asked |= dict.fromkeys(slots, 0)

    def load_pages(self, pages: Rows[int], slots: Rows[int]) -> None:
        for page, slot in zip(pages, slots, strict=True):
            rows, draft_rows = self.staged.pop(slot)
            self.memory |= {(page, offset): row for offset, row in rows.items()}
            self.draft_memory |= {(page, offset): row for offset, row in draft_rows.items()}

    def are_saved(self, slots: Rows[int]) -> bool:
        return self._is_done(slots)

    def are_staged(self, slots: Rows[int]) -> bool:
        return self._is_done(slots)

    def bytes_of(self, slot: int) -> np.ndarray:
        text = pickle.dumps(self.host[slot])
        assert len(text) <= self.page_bytes
        return np.frombuffer(text.ljust(self.page_bytes), np.uint8)

    def fill(self, slot: int, data: np.ndarray) -> None:
        self.host[slot] = pickle.loads(data.tobytes())

    def _is_done(self, slots: Rows[int]) -> bool:
        self.asked |= {slot: self.asked[slot] + 1 for slot in slots}
        return min(self.asked[slot] for slot in slots) > self.copy_steps

    def _rows_of(self, page: int) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the page's current rows of target and draft, by offset."""
        memories = self.memory, self.draft_memory
        offsets = range(self.config.page_size)
        target, draft = ({o: m[page, o] for o in offsets if (page, o) in m} for m in memories)
        return target, draft

    def agreeing(self, slot: Slot) -> int:
        """Return how many drafts the target would choose too, a function of the history."""
        return zlib.crc32(repr(slot.tokens).encode()) % (self.drafts + 1)

    def _advance(
        self,
        sequence: Sequence,
        drafts: int,
        proposed: np.ndarray | None = None,
        masks: np.ndarray | None = None,
    ) -> RowReport:
        """masks: of the rows behind the drafts `proposed`; None in a round that proposes itself."""
        slot = self.slots[sequence.slot]
        assert slot.sequence is sequence, "a round over a slot that was not opened for it"
        if slot.finished:
            return RowReport([], 0)
        wanted = sequence.wanted_drafts(drafts)
        valid = max(0, min(wanted, slot.max_len - len(slot.tokens) - 1))
        accepted = min(self.agreeing(slot), valid) if proposed is None else valid
        self._write_draft(sequence, slot.tokens, len(slot.tokens) - 2 - slot.num_accepted)
        self._check(sequence, slot.tokens[:-1], ahead=slot.tokens)
        committed, history = [], list(slot.tokens)
        for row in range(accepted + 1):
            committed.append(slot.choose(history, None if masks is None else masks[row]))
            history.append(committed[-1])
            if proposed is not None and row < valid and proposed[row] != committed[-1]:
                accepted = row
                break
        drafted = [*history[:-1], *[-1] * (valid - accepted)]
        self._write(sequence, drafted, len(slot.tokens) - 1)
        for position in range(len(slot.tokens) - 1, len(slot.tokens) - 1 + valid - 1):
            self.draft_memory[self._place(sequence, position)] = (-1,)
        slot.num_accepted = accepted
        for token in committed:
            slot.commit(token)
        return RowReport(committed, valid)

    def _check(self, sequence: Sequence, history: list[int], ahead: list[int]) -> None:
        """Every row below the length holds what was written for this history, the draft's also for
        the token after it."""
        for position in range(len(history)):
            place = self._place(sequence, position)
            held = self.memory.get(place)
            assert held == tuple(history[: position + 1]), f"row {position} is not its own"
            held = self.draft_memory.get(place)
            if self.has_draft:
                assert held == tuple(ahead[: position + 2]), f"draft row {position} is not its own"

    def _write(self, sequence: Sequence, history: list[int], start: int) -> None:
        for position in range(start, len(history)):
            self.memory[self._place(sequence, position)] = tuple(history[: position + 1])

    def _write_draft(self, sequence: Sequence, history: list[int], start: int) -> None:
        for position in range(start, len(history) - 1):
            self.draft_memory[self._place(sequence, position)] = tuple(history[: position + 2])

    def _place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        page, offset = divmod(position, self.config.page_size)
        assert page < len(sequence.pages), "no page covers a row the program needs"
        assert sequence.pages[page] != SCRATCH_PAGE
        return sequence.pages[page], offset


def simulated_engine(
    monkeypatch: pytest.MonkeyPatch,
    config: EngineConfig,
    *,
    eos: tuple[int, ...] = (),
    tokenizer: Tokenizer | None = None,
    with_draft: bool = True,
    vision: VisionConfig | None = None,
    **options: Any,
) -> Engine:
    """The real engine on the simulated device; with `vision` it takes images."""
    target, draft = simulated_pair(monkeypatch, eos)
    if vision:
        # The vocabulary has the placeholder, and the target is as wide as the tower's features.
        placeholder = vision.media_placeholder_token_id
        vocab = max(placeholder + 1, getattr(tokenizer, "vocab_size", 0))
        monkeypatch.setattr("simulated_device.VOCAB", vocab)
        target.config.vocab_size = vocab
        target.config.media_placeholder_token_id = placeholder
        target.config.hidden_size = draft.config.hidden_size = vision.text_hidden_size
        options["vision"] = SimpleNamespace(config=vision, split=False)
    return Engine(target, draft if with_draft else None, config, tokenizer=tokenizer, **options)


def prefilled(engine: Engine) -> int:
    """Tokens that went through prefill programs."""
    runner: Any = engine._runner
    assert isinstance(runner, SimulatedRunner)
    return runner.prefilled


def simulated_pair(monkeypatch: pytest.MonkeyPatch, eos: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Stand-ins for target and draft; engines made while the patch lasts run simulated."""
    monkeypatch.setattr("eagle3_jax.engine.engine.Runner", SimulatedRunner)
    config = SimpleNamespace(vocab_size=VOCAB, eos_token_ids=eos, max_position_embeddings=4096)
    return SimpleNamespace(config=config), SimpleNamespace(config=SimpleNamespace())


def plain_answer(
    request: Request,
    config: EngineConfig,
    eos: tuple[int, ...] = (),
    tokenizer: Tokenizer | None = None,
) -> tuple[list[int], str, str, int | str | None]:
    """Tokens, text, finish reason and stop reason by the rules, one token at a time.

    Text and stop strings come from whole decodes of tokens whose text can't change any more.
    """
    sampling, seed = request.sampling, request.sampling.seed or 0
    ends = () if sampling.ignore_eos else eos
    stops, answer = {*ends, *sampling.stop_token_ids}, []
    most = config.max_model_len - len(request.prompt_ids)
    most = min(most, sampling.max_tokens or most)
    decode = tokenizer.decode if tokenizer else lambda ids: ""
    lengths: list[int] = []
    search_from = 0
    while True:
        early = len(answer) < sampling.min_tokens
        history = [*with_features(request, request.prompt_ids), *answer]
        token = next_token(history, seed, sorted(stops) if early else ())
        answer.append(token)
        if token in stops:
            shown = answer if sampling.include_stop_str_in_output else answer[:-1]
            return answer, decode(shown), "stop", None if token in ends else token
        text = decode(answer)
        settled = not text.endswith("\ufffd")
        if settled:
            lengths += [len(text)] * (len(answer) - len(lengths))
        if len(answer) < sampling.min_tokens:
            search_from = len(text) if settled else search_from
        elif settled:
            hits = [(text.find(s, search_from), s) for s in sampling.stop]
            hits = [hit for hit in hits if hit[0] >= 0]
            if hits:
                start, found = min(hits, key=lambda hit: hit[0])
                whole = sampling.include_stop_str_in_output
                cut = start + len(found) * whole
                kept = sum(length <= cut for length in lengths)
                if whole and (lengths[kept - 1] if kept else 0) < cut:
                    kept = sum(length <= lengths[kept] for length in lengths)
                return answer[:kept], text[:cut], "stop", found
        if len(answer) == most:
            return answer, text, "length", None
