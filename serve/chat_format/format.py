"""The chat formats: how models write reasoning and tool calls, and which ones a server parses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from serve.chat_format.kimi_k2 import KimiReader
from serve.chat_format.marked_text import Mark
from serve.chat_format.minimax_m2 import MiniMaxReader
from serve.chat_format.reader import END_OF_THINK, THINK, AnswerReader
from serve.chat_format.reasoning import SpecialTokens, id_of

KIMI_K2, MINIMAX_M2 = KimiReader, MiniMaxReader
ChatFormat = type[AnswerReader]
CHAT_FORMATS = {known.name: known for known in (KIMI_K2, MINIMAX_M2)}


@dataclass(frozen=True)
class ChatReading:
    """Parsers for chat answers, and marks (special tokens with a meaning) by token id.

    `auto_tool_choice`: the model may decide by itself to call a tool. `history`: the format of
    calls in a history, whether or not calls in answers are parsed.
    """

    reasoning: ChatFormat | None = None
    tools: ChatFormat | None = None
    auto_tool_choice: bool = False
    marks: Mapping[int, Mark] = field(default_factory=lambda: MappingProxyType({}))
    history: ChatFormat | None = None

    @property
    def call_ids(self) -> tuple[int, int]:
        """The ids of the marks around calls. Only valid if calls are parsed."""
        ids = {mark: token_id for token_id, mark in self.marks.items()}
        return ids[self.reader.section], ids[self.reader.end_of_section]

    @property
    def reader(self) -> ChatFormat:
        """The answer reader. Without marks any reader works."""
        return self.tools or self.reasoning or KIMI_K2


PLAIN = ChatReading()
"""Parses nothing: the whole answer is content."""


def choose_reading(
    tokenizer: SpecialTokens,
    reasoning_parser: str = "auto",
    tool_call_parser: str = "auto",
    auto_tool_choice: bool | None = None,
) -> ChatReading:
    """Return the parsers that flags ask for. `auto` and None follow the tokenizer's special tokens.

    Raises ValueError if the tokenizer lacks the marks of a requested parser.
    """
    ids = {mark: id_of(mark, tokenizer) for d in CHAT_FORMATS.values() for mark in _marks(d)}
    lacking = {d: [m.text for m in d.call_marks if ids[m] is None] for d in CHAT_FORMATS.values()}
    likely = next((d for d in CHAT_FORMATS.values() if not lacking[d]), None)
    tools = likely if tool_call_parser == "auto" else CHAT_FORMATS.get(tool_call_parser)
    if tools and lacking[tools]:
        missing = ", ".join(lacking[tools])
        raise ValueError(f"--tool-call-parser {tools.name}: the tokenizer has no {missing}")
    thinks = ids[THINK] is not None and ids[END_OF_THINK] is not None
    reasoning = CHAT_FORMATS.get(reasoning_parser)
    if reasoning and not thinks:
        raise ValueError(f"--reasoning-parser {reasoning.name}: the tokenizer has no <think> marks")
    if reasoning_parser == "auto" and thinks:
        reasoning = tools or likely or KIMI_K2
    if reasoning and tools and reasoning is not tools:
        raise ValueError(
            f"--reasoning-parser {reasoning.name} and --tool-call-parser {tools.name}: no model "
            "writes both; give one of them, or none for what is to stay text"
        )
    if auto_tool_choice and tools is None:
        raise ValueError("--enable-auto-tool-choice needs --tool-call-parser")
    used = [
        *((THINK, END_OF_THINK) if reasoning else ()),
        *((tools or reasoning or KIMI_K2).call_marks if tools or reasoning else ()),
    ]
    marks = {token_id: mark for mark in used if (token_id := ids[mark]) is not None}
    auto = tools is not None and auto_tool_choice is not False
    return ChatReading(reasoning, tools, auto, marks, tools or likely)


def _marks(chat_format: ChatFormat) -> tuple[Mark, ...]:
    return (THINK, END_OF_THINK, *chat_format.call_marks)
