"""Matchers for requests: the grammar, the thinking budget, or both."""

from eagle3_jax.engine.grammars import interface as grammars
from eagle3_jax.engine.grammars.thinking import ThinkingMatcher
from eagle3_jax.engine.request import Request


def matcher_of(
    request: Request, compiler: grammars.GrammarCompiler | None
) -> grammars.Matcher | None:
    """Return a request's matcher, None for free text; raise ValueError without grammars."""
    constraint, budget = request.sampling.structured_outputs, request.sampling.thinking_budget
    if constraint is None and budget is None:
        return None
    if compiler is None:
        raise ValueError(grammars.NO_GRAMMARS)
    form = constraint and (request.grammar or compiler.compile(constraint)).start()
    return form if budget is None else ThinkingMatcher(budget, form)
