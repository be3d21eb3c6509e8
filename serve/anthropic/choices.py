"""The choice of a message, parsed as it arrives."""

from collections.abc import AsyncIterator

from eagle3_jax.engine import Request, RequestOutput
from serve.anthropic.content import Content, NamedEvent
from serve.chat_format.parser import AnswerParser
from serve.engine.choices import Choices, ChoiceState
from serve.engine.stream import OutputStream


class ReadChoices(Choices):
    """The single choice of a message, and its content so far."""

    def __init__(
        self, request: Request, parser: AnswerParser, content: Content, *, prompt_only: bool
    ) -> None:
        super().__init__([request], 1, prompt_only=prompt_only)
        self.content = content
        self.added: list[NamedEvent] = []
        """The events of the last engine output."""
        self._parser = parser

    @property
    def has_calls(self) -> bool:
        """True if the answer has a tool call."""
        return self._parser.has_calls

    async def follow(
        self, stream: OutputStream
    ) -> AsyncIterator[tuple[ChoiceState, RequestOutput]]:
        """Yield every engine output after parsing it."""
        async for state, output in super().follow(stream):
            last = output.finish_reason is not None
            each = self._parser.take_each(output.token_ids, output.text, final=last)
            self.added = [event for parts in each for event in self.content.take(parts)]
            if last:
                self.added += self.content.end(cut=_is_cut(state))
            yield state, output


def _is_cut(state: ChoiceState) -> bool:
    """Return whether the answer was cut off, and not ended by the model."""
    return state.finish_reason != "stop" or isinstance(state.stop_reason, str)
