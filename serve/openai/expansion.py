"""Limits how much one HTTP request expands to, over its prompts and choices, before it is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve.asgi.errors import invalid_request
from serve.openai.protocol import GenerationRequest
from serve.pair.generation_config import Encoder, spell_bad_words

NAMING_OPTIONS = ("logit_bias", "allowed_token_ids", "bad_words_ids")
MAX_NAMED_TOKENS = 2**19
"""Entries of NAMING_OPTIONS over all choices, as the engine thread reads each for every choice."""
MAX_RETURNED = 2**23
"""Log-probabilities and prompt tokens of an answer. Twenty for each token of a context of 262,144
make 5.5 million."""


@dataclass
class Expansion:
    """Counts, prompt by prompt, what the choices of one HTTP request name and receive."""

    named: int = 0
    returned: int = 0
    spelled: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Token ids of bad words, which most prompts share."""

    def spell(self, encoder: Encoder, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Cache `spell_bad_words`. Raises what it raises."""
        if (known := self.spelled.get(tuple(words))) is None:
            known = self.spelled[tuple(words)] = spell_bad_words(encoder, words)
        return known

    def add_options(self, options: Mapping[str, Any], num_requests: int) -> None:
        """Count the tokens that the sampling options of engine requests name; 400 for too many."""
        self.named += num_requests * sum(len(options.get(name) or ()) for name in NAMING_OPTIONS)
        if self.named > MAX_NAMED_TOKENS:
            message = (
                f"{', '.join(NAMING_OPTIONS)} may have {MAX_NAMED_TOKENS} entries, those of all "
                f"choices together; got {self.named}"
            )
            raise invalid_request(message, param="logit_bias")

    def add(self, body: GenerationRequest, prompt: int, limit: int | None, usual: int) -> int:
        """Count what the choices of one prompt receive, and return the token limit of each.

        Args:
            body: the HTTP request.
            prompt: number of tokens of the prompt.
            limit: tokens of each choice that the client asks for.
            usual: the limit without one from the client; less if the answer would be too large.

        Raises:
            ApiError: 400 if the prompt and `limit` exceed MAX_RETURNED.
        """
        each = 0 if body.num_prompt_logprobs is None else body.num_prompt_logprobs + 1
        self._count_returned(body.num_choices * prompt * (each + body.repeats_prompt), "prompt")
        if body.num_logprobs is None:
            return usual if limit is None else limit
        each = body.num_choices * (body.num_logprobs + 1)
        if limit is None:
            limit = max(1, min(usual, (MAX_RETURNED - self.returned) // each))
        self._count_returned(each * limit, "max_tokens")
        return limit

    def _count_returned(self, count: int, param: str) -> None:
        self.returned += count
        if self.returned > MAX_RETURNED:
            message = (
                f"an answer may have {MAX_RETURNED} log-probabilities and tokens of prompts, "
                f"those of all choices together; this one may have {self.returned}: ask for fewer "
                "choices, tokens or log-probabilities"
            )
            raise invalid_request(message, param=param)
