"""Match patterns that name modules: plain names, shell patterns, or `re:` and a regular expression.

A pattern matches a module by its checkpoint name, by that name without the prefix `language_model.`
or `language_model.model.`, or by its last component. A regular expression is anchored at the start
only, a plain name is compared whole. Other software matches regular expressions against its own
names, such as `model.fc`, so `as_regexes` writes patterns for any prefix.
"""

import fnmatch
import functools
import re
import warnings
from collections.abc import Collection, Iterable

from eagle3_jax.config.published import brief

REGEX = "re:"
_PREFIX = re.compile(r"(language_model\.)?(model\.)?")
_WILDCARDS = "*?["


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a regular expression that does not compile without warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern.removeprefix(REGEX) if pattern.startswith(REGEX) else "")
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise ValueError(
            f"exclude pattern {brief(pattern)} is no regular expression: {error}"
        ) from None


def matches(pattern: str, module: str) -> bool:
    """Return whether a pattern matches a module's checkpoint name (without `.weight`)."""
    names = _names(module)
    if pattern.startswith(REGEX):
        return any(re.match(pattern.removeprefix(REGEX), name) for name in names)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def unprefixed(module: str) -> str:
    """Return `norm` for `language_model.model.norm`; each prefix may be absent."""
    return _PREFIX.sub("", module, count=1)


def excluded(module: str, patterns: Iterable[str]) -> bool:
    """Return whether any pattern matches the module."""
    plain, others = _sorted_out(tuple(patterns))
    return not plain.isdisjoint(_names(module)) or any(matches(p, module) for p in others)


@functools.cache
def _sorted_out(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Separate plain names from other patterns: released lists name 530 modules of 70,000."""
    special = [p for p in patterns if p.startswith(REGEX) or any(c in p for c in _WILDCARDS)]
    return frozenset(patterns) - frozenset(special), tuple(special)


def _names(module: str) -> tuple[str, str, str, str]:
    """Return the names that a pattern may match."""
    text_model = module.removeprefix("language_model.")
    return module, text_model, unprefixed(module), module.rpartition(".")[2]


def as_regexes(pattern: str, modules: Collection[str]) -> list[str]:
    """Return `re:` patterns that match the same of `modules` by their full names.

    The widest expression that adds no module is chosen: it also matches under another prefix.
    """
    wanted = {module for module in modules if matches(pattern, module)}
    for expression in _candidates(pattern):
        if {module for module in modules if re.match(expression, module)} == wanted:
            return [REGEX + expression]
    return [f"{REGEX}(.*\\.)?{re.escape(module)}$" for module in sorted(wanted)]


def _candidates(pattern: str) -> list[str]:
    if pattern.startswith(REGEX):
        expression = pattern.removeprefix(REGEX)
        return [expression, rf"(.*\.)?(?:{expression})"]
    if any(character in pattern for character in _WILDCARDS):
        expression = _from_wildcards(pattern)
        return [expression + "$", rf"(.*\.)?{expression}$"]
    return [f".*{re.escape(pattern)}.*", rf"(.*\.)?{re.escape(pattern)}$"]


def _from_wildcards(pattern: str) -> str:
    """Translate `*self_attn*` to `.*self_attn.*`."""

    def translated(found: re.Match[str]) -> str:
        token = found[0]
        if len(token) > 1:
            return token.replace("[!", "[^", 1)
        return {"*": ".*", "?": "."}.get(token, re.escape(token))

    return re.sub(r"\[!?\]?[^\]]*\]|.", translated, pattern)
