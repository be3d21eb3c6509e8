"""A fake engine that puts out given tokens, several at a time, with the engine's own text."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_tokenizers import kimi
from fake_engine import FakeEngine, scored

from convert.text.tokenizer import Tokenizer
from eagle3_jax.engine import Request, RequestOutput, Round
from eagle3_jax.engine.sequence import Sequence as EngineSequence


@dataclass
class ScriptedEngine(FakeEngine):
    """Sibling i of a request says answers[i], cut and ended by the engine's own rules."""

    tokenizer: Tokenizer = field(default_factory=kimi)
    max_model_len: int = 256
    answers: Sequence[Sequence[int]] = ()
    widths: Sequence[int] = (1, 3, 2)
    under_way: dict[str, tuple[EngineSequence, list[int]]] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        return bool(self.under_way)

    def add(self, request: Request) -> None:
        self.asked.append(request)
        sibling = int(request.request_id.rpartition("-")[2])
        tokens = list(self.answer(request, sibling))
        eos = self.tokenizer.eos_token_ids
        sequence = EngineSequence.of(request, eos, self.max_model_len, self.tokenizer)
        self.under_way[request.request_id] = (sequence, [*tokens, eos[-1]])

    def answer(self, request: Request, sibling: int) -> Sequence[int]:
        """The script's tokens for this request."""
        return self.answers[sibling % len(self.answers)]

    def cancel(self, request_id: str) -> None:
        self.under_way.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        time.sleep(self.step_s)
        self.num_steps += 1
        width = self.widths[self.num_steps % len(self.widths)]
        outputs = [self._advance_script(*entry, width) for entry in list(self.under_way.values())]
        return [output for output in outputs if output]

    def _advance_script(
        self, sequence: EngineSequence, tokens: list[int], width: int
    ) -> RequestOutput | None:
        count = sequence.request.sampling.logprobs
        for _ in range(width):
            token = tokens.pop(0)
            sequence.append(token, next(iter(scored([token], count)), None))
            if sequence.finish_reason:
                del self.under_way[sequence.request.request_id]
                break
        sequence.rounds.append(Round(3, 3, 3, width - 1, width))
        return sequence.output()


class AnyGrammars:
    """Takes every constraint, of which a script takes no notice."""

    def known(self, constraint: Any) -> None:
        """None, so that each is compiled."""

    def compile(self, constraint: Any) -> Any:
        """Nothing."""
