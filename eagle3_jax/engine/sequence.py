"""One request in the engine: tokens, pages, and finish rules."""

import math
import secrets
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property

from eagle3_jax.engine.acceptance import Round
from eagle3_jax.engine.grammars.interface import Matcher
from eagle3_jax.engine.logprob_rows import LogprobRows, LogprobsOfToken, PromptLogprobs
from eagle3_jax.engine.page_tiers import NO_TOKENS, PageSource, TokensByTier
from eagle3_jax.engine.request import BARS_EVERY_TOKEN, FinishReason, Request, RequestOutput
from eagle3_jax.engine.text import TextStream, Tokenizer
from eagle3_jax.sampling.options import (
    MAX_KERNEL_BIASES,
    MAX_REQUEST_STOP_IDS,
    MAX_STOP_IDS,
    AppliedBy,
)
from eagle3_jax.sampling.sampler import NO_CANDIDATE, NOT_FINITE
from eagle3_jax.speculative.state import NO_PAUSE

FAILURES = {
    NOT_FINITE: "the model's logits are not finite",
    NO_CANDIDATE: BARS_EVERY_TOKEN,
}


class Status(Enum):
    """Life cycle of a sequence."""

    WAITING = auto()
    LOADING = auto()
    PREFILLING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False)
class Sequence:
    """The host's record of one request.

    `limit` is its maximum of tokens, prompt included; `kv_len` KV rows are known to be committed.
    `rounds_in_flight` are unread; the last dispatched one had k = `last_drafts`, 0 before. It
    `copies` its own tokens if the last round that was read had looked-up drafts and accepted as
    many as the draft model makes.
    `replica` owns its slot and pages. At the last preemption the answer had `num_kept` tokens, of
    which an exact re-run must still reproduce `replay`. `pages` are int32 for page tables;
    `page_keys` are keys of the first ones, `num_published` of them in the prefix cache. `cached`
    are the prompt tokens found at the first admission, None before; `loaded` are those of the
    latest one that are copied to the devices. `source` provides the pages of keys `fetched`.
    Prefill has reached images up to `images_until`. `origins` and requested `logprobs` have one
    entry per token of output_ids, of which `num_put_out` were returned. `scored_prompt` is the
    known part of prompt_logprobs.
    """

    request: Request
    eos_token_ids: frozenset[int]
    limit: int
    seed: int
    stream: TextStream
    matcher: Matcher | None = None
    status: Status = Status.WAITING
    has_started: bool = False
    slot: int = -1
    replica: int = 0
    pages: "array[int]" = field(default_factory=lambda: array("i"))
    prefill_ids: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)
    num_published: int = 0
    source: PageSource | None = None
    fetched: set[bytes] = field(default_factory=set)
    cached: TokensByTier | None = None
    loaded: TokensByTier = NO_TOKENS
    num_prefilled: int = 0
    images_until: int = 0
    kv_len: int = 0
    rounds_in_flight: int = 0
    last_drafts: int = 0
    copies: bool = False
    replay: int = 0
    num_kept: int = 0
    output_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[LogprobsOfToken] = field(default_factory=list)
    scored_prompt: list[LogprobsOfToken | None] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs = ()
    num_put_out: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        eos_token_ids: Collection[int],
        max_model_len: int,
        tokenizer: Tokenizer | None,
        matcher: Matcher | None = None,
    ) -> "Sequence":
        """Make a request's sequence; raise ValueError if it exceeds the engine's limits."""
        sampling, length = request.sampling, len(request.prompt_ids)
        if not 0 < length < max_model_len:
            raise ValueError(
                f"the prompt has {length} tokens; it must have 1..{max_model_len - 1} so that at "
                f"least one can follow within max_model_len={max_model_len}"
            )
        if sampling.n != 1:
            raise ValueError("a request is one sequence: expand n > 1 into requests with seed + i")
        if sampling.stop and tokenizer is None:
            raise ValueError("stop strings need a tokenizer")
        stops = set(sampling.stop_token_ids) | set(() if sampling.ignore_eos else eos_token_ids)
        if len(stops) > MAX_REQUEST_STOP_IDS:
            raise ValueError(
                f"at most {MAX_REQUEST_STOP_IDS} ids may end a request, EOS ids included; "
                f"got {len(stops)}"
            )
        most = max_model_len if sampling.max_tokens is None else length + sampling.max_tokens
        return cls(
            request,
            frozenset() if sampling.ignore_eos else frozenset(eos_token_ids),
            min(most, max_model_len),
            secrets.randbits(63) if sampling.seed is None else sampling.seed,
            TextStream(tokenizer, sampling),
            matcher,
            prefill_ids=list(request.prompt_ids),
            scored_prompt=[] if sampling.prompt_logprobs is None else [None],
        )

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end it: EOS unless ignored, then the request's own."""
        own = set(self.request.sampling.stop_token_ids) - self.eos_token_ids
        return [*sorted(self.eos_token_ids), *sorted(own)]

    @cached_property
    def controlled(self) -> bool:
        """True if it needs logit controls, also for many stop ids before min_tokens."""
        active = self.request.sampling.active
        return self._holds_back_many or AppliedBy.LOGIT_CONTROLS in active.values()

    @cached_property
    def needs_logits(self) -> bool:
        """True if its tokens need written logits; a kernel supports a few biases."""
        applied = self.request.sampling.active
        if len(self.request.sampling.bias_pairs) <= MAX_KERNEL_BIASES:
            applied = {name: by for name, by in applied.items() if name != "logit_bias"}
        written = {AppliedBy.SAMPLER, AppliedBy.FULL_PROGRAMS, AppliedBy.LOGIT_CONTROLS}
        return self._holds_back_many or not written.isdisjoint(applied.values())

    @cached_property
    def needs_full(self) -> bool:
        """True if only a full program supports its options."""
        active = self.request.sampling.active
        return self.controlled or AppliedBy.FULL_PROGRAMS in active.values()

    @property
    def _holds_back_many(self) -> bool:
        return self.request.sampling.min_tokens > 0 and len(self.stop_ids) > MAX_STOP_IDS

    @property
    def pause_id(self) -> int:
        """Token after which the device waits for a round with masks; NO_PAUSE for none."""
        form = self.request.sampling.structured_outputs
        return NO_PAUSE if form is None or form.between is None else form.between[0]

    def needs_masks(self, most: int) -> bool:
        """Return whether masks may restrict tokens committed by programs in flight and one more."""
        free = math.inf if self.matcher is None else self.matcher.free_tokens
        return free < (self.rounds_in_flight + 1) * most

    @property
    def wants_logprobs(self) -> bool:
        return self.request.sampling.logprobs is not None

    @property
    def scores_prompt(self) -> bool:
        """True if the prompt's logprobs are requested; a separate program then runs all of it."""
        return self.request.sampling.prompt_logprobs is not None

    def wanted_drafts(self, most: int) -> int:
        """Return the drafts per round, up to `most`, that it lets verify."""
        wanted = self.request.sampling.num_speculative_tokens
        return most if wanted is None else min(wanted, most)

    def tokens_between(self, start: int, end: int) -> list[int]:
        """Return its known tokens at positions [start, end)."""
        length = len(self.request.prompt_ids)
        answer = self.output_ids[max(start - length, 0) : max(end - length, 0)]
        return self.request.prompt_ids[start:end] + answer

    @property
    def surely_finished(self) -> bool:
        """True if the rounds in flight must reach the limit: each commits at least one token."""
        return self.kv_len + 1 + self.rounds_in_flight >= self.limit

    def score_prompt(self, rows: LogprobRows) -> None:
        """Add logprobs of the next prompt tokens; a re-run prompt adds none twice."""
        count, known = self.request.sampling.prompt_logprobs or 0, len(self.scored_prompt)
        tokens = self.request.prompt_ids[known : known + len(rows)]
        self.scored_prompt.extend(rows.at(i, token, count) for i, token in enumerate(tokens))
        if len(self.scored_prompt) == len(self.request.prompt_ids):
            self.prompt_logprobs = tuple(self.scored_prompt)

    def commit(self, token_ids: list[int], rows: LogprobRows | None, copies_from: int) -> int:
        """Append a program's committed tokens up to the finish; return the answer's gain.

        Drafts were looked up from index `copies_from` on, and made by the draft model before.
        """
        before, count = len(self.output_ids), self.request.sampling.logprobs
        for index, token in enumerate(token_ids):
            # After a round's drafts comes the target's own token, as after prefill.
            origin = index + 1 if index < len(token_ids) - 1 else 0
            origin = -origin if index >= copies_from else origin
            scored = None if rows is None or count is None else rows.at(index, token, count)
            self.append(token, scored, origin)
            if self.status is Status.FINISHED:
                break
        return len(self.output_ids) - before

    def append(self, token: int, logprobs: LogprobsOfToken | None = None, origin: int = 0) -> None:
        """Append one committed token and apply the finish rules: stop id, stop string, length.

        A stop within the length budget precedes the length. A grammar ends at an EOS id, even if
        the request ignores EOS.
        """
        if token in FAILURES:
            self.finish("error", FAILURES[token])
            return
        if self.matcher is not None:
            self.matcher.commit(token)
        if self.replay:
            expected = self.output_ids[-self.replay]
            if token != expected:
                raise RuntimeError(f"exact replay diverged: expected token {expected}, got {token}")
            self.replay -= 1
            return
        sampling, own_stops = self.request.sampling, self.request.sampling.stop_token_ids
        self.output_ids.append(token)
        self.origins.append(origin)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        ready = len(self.output_ids) >= sampling.min_tokens
        complete = self.matcher is not None and self.matcher.terminated
        if complete or (ready and (token in self.eos_token_ids or token in own_stops)):
            silent = not sampling.include_stop_str_in_output
            self.stream.push(token, silent=silent, match=False)
            is_own = token in own_stops and token not in self.eos_token_ids
            self.finish("stop", token if is_own else None)
            return
        matched = self.stream.push(token, match=ready)
        if matched is not None:
            self.finish("stop", matched)
        elif len(self.request.prompt_ids) + len(self.output_ids) >= self.limit:
            self.finish("length")

    @property
    def has_nonfinite_kv(self) -> bool:
        """True if it ended with non-finite logits, so that its KV may be non-finite too."""
        return (self.finish_reason, self.stop_reason) == ("error", FAILURES[NOT_FINITE])

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the sequence; its later device output is ignored."""
        self.status = Status.FINISHED
        self.finish_reason, self.stop_reason = reason, stop_reason

    def output(self) -> RequestOutput | None:
        """Return the output since the last call, or None while all of it is held back."""
        token_ids, text = self.stream.release(final=self.status is Status.FINISHED)
        if not (token_ids or text or self.finish_reason):
            return None
        rounds, self.rounds = tuple(self.rounds), []
        first, self.num_put_out = self.num_put_out, self.num_put_out + len(token_ids)
        return RequestOutput(
            self.request.request_id,
            token_ids,
            text,
            self.finish_reason,
            self.stop_reason,
            rounds,
            len(self.request.prompt_ids),
            self.seed,
            self.cached or NO_TOKENS,
            tuple(self.logprobs[first : self.num_put_out]),
            self.prompt_logprobs,
            tuple(self.origins[first : self.num_put_out]),
        )

    def rewind(self, *, exact: bool) -> None:
        """Return to waiting after losing the pages, to prefill all tokens.

        In exact mode prefill the prompt and regenerate the answer: the same programs give the same
        bits, so the delivered tokens are replayed.
        """
        self.status, self.slot, self.kv_len = Status.WAITING, -1, 0
        self.last_drafts = self.images_until = 0
        self.copies = False
        if len(self.scored_prompt) < len(self.request.prompt_ids):
            del self.scored_prompt[1:]
        self.num_kept = len(self.output_ids)
        answer = [] if exact else self.output_ids
        self.prefill_ids = [*self.request.prompt_ids, *answer]
        self.replay = self.num_kept if exact else 0
        if exact and self.matcher is not None:
            self.matcher.restart()
