"""A third target through the same engine: Llama with an EAGLE-3 draft."""

from driving import drive, sizes
from engine_requests import mixed_requests
from tiny import HIDDEN, VOCAB, tiny_draft, tiny_target

from eagle3_jax.config import LlamaConfig, RopeConfig
from eagle3_jax.engine import Engine
from serve.bench.equality.ties import Scorer

LLAMA = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0),
)


def test_a_draft_changes_no_token_of_llama() -> None:
    target, requests = tiny_target(config=LLAMA), mixed_requests(12)
    engine = Engine(target, tiny_draft(target), sizes(3))
    drafted = drive(engine, requests)
    plain = drive(Engine(target, None, sizes(0)), requests)
    scorer = Scorer(target, 64)
    for request in requests:
        name = request.request_id
        tokens = drafted[name].token_ids, plain[name].token_ids
        found = scorer.explain(name, request.prompt_ids, request.sampling, *tokens)
        assert found is None or found.cause, found
    stats = engine.stats()
    assert 0.1 < stats.num_accepted_tokens / stats.num_drafts
