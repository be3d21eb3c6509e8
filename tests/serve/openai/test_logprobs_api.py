"""Log-probabilities and origins of tokens, over an engine with a tiny random pair."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from fake_server import Served

import eagle3_jax
from serve.openai.logprob_forms import LEAST, token_text
from serve.pair.loading import LoadedPair

pytestmark = pytest.mark.xdist_group("served pair")
PROMPT = list(range(40, 60))
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 12}
IDS = {"return_token_ids": True}
CLOSE = 2e-4


def log_distribution(pair: LoadedPair, token_ids: list[int]) -> np.ndarray:
    """float64 log-probabilities of the whole model; row i is about token i + 1."""
    padded = jnp.asarray([token_ids + [0] * (64 - len(token_ids))])
    logits = np.asarray(eagle3_jax.forward(pair.target, padded).logits[0], np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("drafts", [0, 3])
def test_an_echoed_completion_tells_every_token_but_the_first(
    server: Served, pair: LoadedPair, drafts: int
) -> None:
    extra: dict[str, Any] = {**IDS, "speculative": {"num_tokens": drafts}, "prompt_logprobs": 1}
    answer = server.openai.completions.create(
        model="fake", prompt=PROMPT, echo=True, logprobs=3, extra_body=extra, **SAMPLING
    )
    choice = answer.choices[0]
    assert choice.model_extra is not None and choice.logprobs is not None
    logprobs, tokens = choice.logprobs, PROMPT + choice.model_extra["token_ids"]
    assert logprobs.tokens == [token_text(pair.tokenizer, token) for token in tokens]
    assert logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None and logprobs.token_logprobs[0] is None
    assert len(logprobs.top_logprobs) == len(logprobs.text_offset) == len(tokens)
    assert len(tokens) == len(PROMPT) + 12
    expected = log_distribution(pair, tokens)
    for index in range(1, len(tokens)):
        row = expected[index - 1]
        assert logprobs.token_logprobs[index] == pytest.approx(row[tokens[index]], abs=CLOSE)
        shown = [tokens[index], *np.argsort(-row)[:3].tolist()]
        texts = [token_text(pair.tokenizer, token) for token in shown]
        # Halves of characters share a text: the best of them stands for all.
        best = {t: max(row[i] for i, u in zip(shown, texts, strict=True) if u == t) for t in texts}
        assert logprobs.top_logprobs[index] == pytest.approx(best, abs=CLOSE)
    prompt_text = pair.tokenizer.decode(PROMPT, skip_special=False)
    assert choice.text.startswith(prompt_text)
    assert logprobs.text_offset[len(PROMPT)] == len(prompt_text)
    for entry, token in zip(choice.model_extra["prompt_logprobs"][1:], PROMPT[1:], strict=True):
        assert next(iter(entry)) == str(token)
        assert entry[str(token)]["decoded_token"] == token_text(pair.tokenizer, token)


def test_a_streamed_completion_tells_what_the_whole_one_does(server: Served) -> None:
    body = {"prompt": PROMPT, "echo": True, "logprobs": 2, "n": 2, **SAMPLING}
    parts: list[dict[str, list]] = [{}, {}]
    for event in server.events("/v1/completions", **body):
        (piece,) = event["choices"]
        for name, values in piece["logprobs"].items():
            parts[piece["index"]].setdefault(name, []).extend(values)
    for choice, told in zip(server.ask("/v1/completions", **body)["choices"], parts, strict=True):
        expected = choice["logprobs"]
        assert [told[n] for n in ("tokens", "text_offset")] == [
            expected[n] for n in ("tokens", "text_offset")
        ]
        values = expected["token_logprobs"][1:]
        assert told["token_logprobs"][1:] == pytest.approx(values, abs=CLOSE)
    assert parts[0]["tokens"] != parts[1]["tokens"]


def test_a_chat_tells_bytes_that_add_up_and_its_stream_tells_the_same(
    server: Served, pair: LoadedPair
) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], **IDS, **SAMPLING}
    body |= {"logprobs": True, "top_logprobs": 4, "ignore_eos": True}
    answer = server.ask("/v1/chat/completions", **body)
    (choice,), prompt = answer["choices"], answer["prompt_token_ids"]
    entries, tokens = choice["logprobs"]["content"], choice["token_ids"]
    spelt = [pair.tokenizer.token_bytes(token) for token in tokens]
    assert [bytes(entry["bytes"] or ()) for entry in entries] == spelt
    expected = log_distribution(pair, prompt + tokens)
    for index, entry in enumerate(entries):
        row = expected[len(prompt) + index - 1]
        assert entry["logprob"] == pytest.approx(row[tokens[index]], abs=CLOSE)
        best = [top["logprob"] for top in entry["top_logprobs"]]
        assert best == pytest.approx(np.sort(row)[::-1][:4], abs=CLOSE)
    pieces = [event["choices"][0] for event in server.events("/v1/chat/completions", **body)]
    streamed = [entry for piece in pieces for entry in piece["logprobs"]["content"] or ()]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]
    logprobs = [entry["logprob"] for entry in entries]
    assert [entry["logprob"] for entry in streamed] == pytest.approx(logprobs, abs=CLOSE)


def test_filtered_tokens_are_numbers_in_json(server: Served) -> None:
    """One candidate is left: the others' probability is 0, and JSON has no infinity."""
    body = {"prompt": PROMPT, "logprobs": 3, "top_k": 1, "logprobs_mode": "processed_logprobs"}
    logprobs = server.ask("/v1/completions", **body | SAMPLING)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [0.0] * 12
    assert {value for top in logprobs["top_logprobs"] for value in top.values()} == {0.0, LEAST}


def test_a_prompt_tells_through_chat_too(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "prompt_logprobs": 0, **SAMPLING}
    answer = server.ask("/v1/chat/completions", **body | IDS)
    first, *others = answer["prompt_logprobs"]
    assert first is None
    assert [list(entry) for entry in others] == [[str(t)] for t in answer["prompt_token_ids"][1:]]
    assert answer["choices"][0]["logprobs"] is None


def test_lm_evals_scoring_gets_the_prompt_and_one_token_of_each_batch_row(server: Served) -> None:
    rows = [PROMPT, PROMPT[:7]]
    body = {"prompt": rows, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}
    one, none = (
        server.ask("/v1/completions", **body, max_tokens=most)["choices"] for most in (1, 0)
    )
    for row, scored, bare in zip(rows, one, none, strict=True):
        logprobs, alone = scored["logprobs"], bare["logprobs"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(row) + 1
        assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
        assert alone["token_logprobs"] == logprobs["token_logprobs"][:-1]
        assert alone["top_logprobs"] == logprobs["top_logprobs"][:-1]


COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"max_tokens": 40, "seed": 3, "temperature": 1, "ignore_eos": True}
BODY |= {"return_token_ids": True}
ENDPOINTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": list(range(40, 60))},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


def ask(server: Served, path: str = COMPLETIONS, **more: Any) -> dict[str, Any]:
    """The only choice of an answer."""
    return server.ask(path, **ENDPOINTS[path] | BODY | more)["choices"][0]


def accepted_per_pos(server: Served) -> list[int]:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    found = re.findall(rf"^{name}{{.*}} (\d+)$", server.http.get("/metrics").text, re.MULTILINE)
    return [int(count) for count in found]


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_token_has_its_text_and_draft_as_the_metrics_count(server: Served, path: str) -> None:
    """Streamed and whole; this pair's random tokens split characters."""
    before = accepted_per_pos(server)
    whole = ask(server, path, token_origins=True)
    after = accepted_per_pos(server)
    entries = whole["token_origins"]
    assert len(entries) == len(whole["token_ids"]) == 40
    text = whole["message"]["content"] if "message" in whole else whole["text"]
    assert "".join(entry["text"] for entry in entries) == text
    origins = [entry["origin"] for entry in entries]
    counts = [origins.count(position) for position in (1, 2, 3)]
    assert counts == [b - a for a, b in zip(before, after, strict=True)] and counts[0]
    assert sum(counts) == whole["spec"]["accepted"]
    assert origins.count(0) == 1 + whole["spec"]["rounds"]
    body = ENDPOINTS[path] | BODY
    pieces = [e["choices"][0] for e in server.events(path, **body, token_origins=True)]
    assert all(len(p["token_origins"]) == len(p["token_ids"]) for p in pieces)
    assert [entry for piece in pieces for entry in piece["token_origins"]] == entries
    unasked = [ask(server, path), *(e["choices"][0] for e in server.events(path, **body))]
    assert not any("token_origins" in choice for choice in unasked)


def test_plain_decoding_has_only_the_targets_tokens_and_a_stop_id_adds_no_text(
    server: Served,
) -> None:
    plain = ask(server, token_origins=True, speculative={"num_tokens": 0})
    assert {entry["origin"] for entry in plain["token_origins"]} == {0}
    stop = plain["token_ids"][9]
    ended = ask(server, token_origins=True, stop_token_ids=[stop])
    entries = ended["token_origins"]
    assert len(entries) == len(ended["token_ids"]) == 10 and ended["token_ids"][-1] == stop
    assert "".join(entry["text"] for entry in entries) == ended["text"]
