"""Template variables that switch thinking, or keep the reasoning of earlier turns in the prompt."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from convert.text.chat_template import variables_of

NAMES = ("thinking", "enable_thinking")
"""Names of the switch in published templates: Kimi-K2.5's, and that of Qwen's and many others."""
EFFORT = "reasoning_effort"
PRESERVE = "preserve_thinking"
"""True: the reasoning of every earlier turn is in the prompt. Kimi-K2.6's template reads it."""


@dataclass(frozen=True)
class ThinkingSwitch:
    """Variables that a template reads: the switch `name` (or None), the effort and PRESERVE."""

    name: str | None = None
    takes_effort: bool = False
    preserves: bool = False

    def reads(self, name: str) -> bool:
        """Return whether the template reads this variable of NAMES and PRESERVE."""
        return self.preserves if name == PRESERVE else name == self.name

    def variables(self, thinks: bool, effort: str | None, *, can_think: bool) -> dict[str, Any]:
        """Return the template variables for a request that switches thinking on or off.

        `can_think`: the checkpoint marks its thinking. Raises ValueError if it cannot comply.
        """
        if self.name is None and thinks != can_think:
            what = "no way to think" if thinks else "no switch that turns its thinking off"
            raise ValueError(f"this checkpoint has {what}; leave the field out")
        given: dict[str, Any] = {} if self.name is None else {self.name: thinks}
        return given | ({EFFORT: effort} if self.takes_effort and effort else {})


@lru_cache(maxsize=8)
def switch_of(template: str | None) -> ThinkingSwitch:
    """Return the switch of a template, found among the variables that it reads."""
    read = variables_of(template or "")
    name = next((name for name in NAMES if name in read), None)
    return ThinkingSwitch(name, EFFORT in read, PRESERVE in read)
