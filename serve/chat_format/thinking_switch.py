"""How a checkpoint's chat template is told whether the model is to think before it answers, and
whether the thoughts of earlier turns are to be in the prompt."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from convert.text.chat_template import variables_of

NAMES = ("thinking", "enable_thinking")
"""Of the variable in published templates: Kimi-K2.5's, and that of Qwen's and many others'."""
EFFORT = "reasoning_effort"
PRESERVE = "preserve_thinking"
"""True: the reasoning of every earlier turn is in the prompt. Kimi-K2.6's template reads it."""


@dataclass(frozen=True)
class ThinkingSwitch:
    """What a template reads. name: of the variable that is true or false, None where it has none.
    takes_effort: whether it reads how hard to think, too. preserves: whether it reads PRESERVE."""

    name: str | None = None
    takes_effort: bool = False
    preserves: bool = False

    def reads(self, name: str) -> bool:
        """Return whether the template reads this variable of NAMES and PRESERVE."""
        return self.preserves if name == PRESERVE else name == self.name

    def variables(self, thinks: bool, effort: str | None, *, can_think: bool) -> dict[str, Any]:
        """The template's variables for a request that says whether to think, and how hard.

        can_think: whether the checkpoint marks its thinking. Raises ValueError for what can't be.
        """
        if self.name is None and thinks != can_think:
            what = "no way to think" if thinks else "no switch that turns its thinking off"
            raise ValueError(f"this checkpoint has {what}")
        given: dict[str, Any] = {} if self.name is None else {self.name: thinks}
        return given | ({EFFORT: effort} if self.takes_effort and effort else {})


@lru_cache(maxsize=8)
def switch_of(template: str | None) -> ThinkingSwitch:
    """The switch of a template, by the variables that it reads."""
    read = variables_of(template or "")
    name = next((name for name in NAMES if name in read), None)
    return ThinkingSwitch(name, EFFORT in read, PRESERVE in read)
