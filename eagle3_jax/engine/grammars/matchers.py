"""Where a request's answer is in its grammar, from its first token on."""

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.grammars import interface as grammars
from eagle3_jax.engine.grammars.thinking import ThinkingMatcher
from eagle3_jax.engine.request import Request


def matcher_of(
    request: Request, config: EngineConfig, compiler: grammars.GrammarCompiler | None
) -> grammars.Matcher | None:
    """None for free text; ValueError where an engine of this configuration has no grammars."""
    constraint, budget = request.sampling.structured_outputs, request.sampling.thinking_budget
    if constraint is None and budget is None:
        return None
    if config.method.tree:
        topk, name = config.eagle_topk, "structured_outputs and thinking_budget"
        raise ValueError(f"{name} need chains: eagle_topk must be 1; it is {topk}")
    if compiler is None:
        raise ValueError(grammars.NO_GRAMMARS)
    form = constraint and (request.grammar or compiler.compile(constraint)).start()
    return form if budget is None else ThinkingMatcher(budget, form)
