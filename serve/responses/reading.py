"""Parses engine outputs into the output items of a response."""

from collections.abc import Iterator
from typing import Any

from convert.text.json_pieces import JsonText
from eagle3_jax.engine import RequestOutput
from serve.chat_format.parser import TokenPart, TokenParts
from serve.openai.chat import answer_parser
from serve.openai.logprob_forms import chat_logprobs
from serve.openai.service import Service
from serve.responses.output import Event, Output
from serve.responses.planning import PlannedResponse
from serve.responses.protocol import ResponseRequest


class Reading:
    """Parses one answer like that of a chat. `run` is a part of the items' ids."""

    def __init__(
        self, service: Service, body: ResponseRequest, planned: PlannedResponse, run: str
    ) -> None:
        self.reasoning_tokens = 0
        self._tokenizer, self._texts, self._body = service.tokenizer, service.token_texts, body
        self._parser = answer_parser(service, planned.chat, planned.end_of_reasoning)
        self._parts = TokenParts(
            service.reading,
            inside_reasoning=planned.end_of_reasoning is not None,
            reads_calls=bool(planned.chat.offered),
        )
        self._output = Output(run, seals=body.seals_reasoning, namespaces=body.namespaces)

    @property
    def items(self) -> list[dict[str, Any]]:
        """Completed items."""
        return self._output.items

    def take(self, output: RequestOutput) -> Iterator[Event]:
        """Yield the events of an engine output."""
        parts = self._parts.take(output.token_ids)
        self.reasoning_tokens += parts.count("reasoning")
        last = output.finish_reason is not None
        logprobs = self._logprobs(output, parts)
        for grown in self._parser.take_each(output.token_ids, output.text, final=last):
            yield from self._output.take(grown, logprobs)
            logprobs = []
        if last:
            yield from self._output.end(
                "completed" if output.finish_reason == "stop" else "incomplete"
            )

    def _logprobs(self, output: RequestOutput, parts: list[TokenPart]) -> list[JsonText]:
        """Return the requested log-probabilities of tokens that are message text."""
        if (count := self._body.num_logprobs) is None:
            return []
        by_id = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
        silent = by_id and not self._body.include_stop_str_in_output
        tokens = list(zip(output.token_ids, output.logprobs, parts, strict=True))
        told = [
            (token_id, entry)
            for token_id, entry, part in (tokens[:-1] if silent else tokens)
            if part == "content" and self._tokenizer.token_bytes(token_id, self._body.skips_special)
        ]
        ids, entries = [i for i, _ in told], [entry for _, entry in told]
        return list(chat_logprobs(self._texts, ids, entries, count))
