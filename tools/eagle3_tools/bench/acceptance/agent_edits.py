"""Tokens kept a round with and without lookup, in a scripted agent conversation and in chat.

Run `python -m eagle3_tools.bench.acceptance.agent_edits`. The agent edits one file in 30 turns: it
says a sentence, repeats the old lines and writes the new ones, as a str_replace tool wants them. No
model runs: the script is the target's choice. EAGLE-3 drafts are accepted at InferenceX's published
rates, everywhere alike, by one draw per position for both sides. Looked-up drafts are those of the
device's rule (eagle3_jax.speculative.lookup), and rounds widen as the engine widens them: by what
was read when a round is dispatched, which is not yet the round before.
"""

import json
import random
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from convert.text.tokenizer import load_tokenizer
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.speculative.lookup import look_up
from eagle3_tools.make_demo.corpus import CATEGORIES, conversations, held_out_prompts
from eagle3_tools.plan.model.acceptance import ACCEPT_LENGTHS
from serve.demo import demo_target_dir
from serve.text_table import text_table

TURNS = 30
FUNCTIONS = 40
EDITED = 3
CHATS = 12
"""Held-out chats of each category of the demo's corpus."""
LENGTH_STEP = 1024
CONFIGS = {
    "EAGLE-3, k = 3": EngineConfig(3),
    **{
        f"EAGLE-3, lookup of {tokens} after {shortest}..{longest}": EngineConfig(
            3,
            num_lookup_tokens=tokens,
            prompt_lookup_min=shortest,
            prompt_lookup_max=longest,
        )
        for shortest, longest, tokens in ((2, 4, 8), (3, 6, 8), (3, 6, 16))
    },
    "lookup of 8 after 3..6 alone": EngineConfig(
        0, num_lookup_tokens=8, prompt_lookup_min=3, prompt_lookup_max=6
    ),
}
_look_up = jax.jit(look_up, static_argnums=(2, 3))
Conversation = list[tuple[str, bool]]
"""Texts in order; True for those that the model writes."""


def agent_conversation() -> Conversation:
    """Return 30 turns over a file of the demo corpus's functions, always the same.

    An edit names EDITED neighbouring functions, about 15 lines, and adds a line to the first.
    """
    rng = random.Random(0)
    drawn = islice(conversations("functions", "train", 0), FUNCTIONS)
    parts = [str(one.answer["content"]).strip("`\n").removeprefix("python\n") for one in drawn]
    sentences = (str(one.answer["content"]) for one in conversations("facts", "held_out", 0))
    turns: Conversation = [("\n\n\n".join(parts), False)]
    for number in range(TURNS):
        place = rng.randrange(FUNCTIONS - EDITED + 1)
        old, lines = "\n\n\n".join(parts[place : place + EDITED]), parts[place].splitlines()
        lines.insert(rng.randrange(1, len(lines)), f"    # step {number}: {rng.choice(parts)[:24]}")
        parts[place] = "\n".join(lines)
        call = {"old_str": old, "new_str": "\n\n\n".join(parts[place : place + EDITED])}
        turns.append((f"Turn {number}: note the step in {lines[0]}", False))
        turns.append((f"{next(sentences)}\n{json.dumps(call)}", True))
        turns.append(("The file was edited.", False))
    return turns


class Counts(NamedTuple):
    """Tokens that rounds kept, and the rounds."""

    tokens: int
    rounds: int


def count_rounds(tokens: np.ndarray, written: np.ndarray, config: EngineConfig) -> Counts:
    """Run rounds over the positions that the model writes; others are prompts."""
    k, size = config.num_speculative_tokens, len(tokens)
    reached = np.diff(ACCEPT_LENGTHS[: k + 1], prepend=0)
    draws = np.random.default_rng(0).random((size, k)) < reached[1:] / reached[:-1]
    found = _finder(tokens, config)
    kept = rounds = last = 0
    copies = [False, False]
    while last < size - 1:
        room = int(np.argmin([*written[last + 1 :], False]))
        if room == 0:
            last, copies = last + 1, [False, False]
            continue
        hits, is_copy = draws[last], False
        copied, matched = found(last)
        if matched:
            width = min(config.lookup_widths(int(copies[0]), 1).lookup, room)
            copied = copied[:width] == tokens[last + 1 : last + 1 + width]
            if matched == config.prompt_lookup_max or not k:
                hits, is_copy = copied, True
            elif hits.all() and copied[:k].all():
                hits, is_copy = np.append(hits, copied[k:]), width > k
        accepted = int(np.argmin([*hits[: room - 1], False]))
        copies = [copies[1], is_copy and accepted >= max(k, 1)]
        kept, rounds, last = kept + accepted + 1, rounds + 1, last + accepted + 1
    return Counts(kept, rounds)


def _finder(tokens: np.ndarray, config: EngineConfig) -> Callable[[int], tuple[np.ndarray, int]]:
    """Return a function from the last known position to drafts and the length of their match."""
    lookup, size = config.method.lookup, -(-len(tokens) // LENGTH_STEP) * LENGTH_STEP
    if lookup is None:
        return lambda last: (tokens[:0], 0)
    history = jnp.asarray(np.pad(tokens, (0, size - len(tokens)))[None], jnp.int32)

    def found(last: int) -> tuple[np.ndarray, int]:
        length = np.asarray([last], np.int32)
        drafts, matched = _look_up(history, length, config.num_lookup_tokens, lookup)
        return np.asarray(drafts)[0], int(matched[0])

    return found


def main() -> None:
    """Print tokens kept a round, and their ratio to EAGLE-3 alone."""
    tokenizer = load_tokenizer(demo_target_dir())

    def encode(turns: Conversation) -> tuple[np.ndarray, np.ndarray]:
        ids = [tokenizer.encode(text) for text, _ in turns]
        flags = [np.full(len(own), by_model) for own, (_, by_model) in zip(ids, turns, strict=True)]
        return np.concatenate(ids), np.concatenate(flags)

    chat = [
        [*((str(m["content"]), False) for m in one.prompt), (str(one.answer["content"]), True)]
        for name in CATEGORIES
        for one in held_out_prompts(name, CHATS)
    ]
    traffic = {f"agent, {TURNS} turns": [agent_conversation()], "chat, one turn": chat}
    table = text_table(
        "Tokens kept a round", ["conversation", "drafts", "tokens", "rounds", "kept", "ratio"]
    )
    for name, turns in traffic.items():
        encoded = [encode(one) for one in turns]
        alone = None
        for label, config in CONFIGS.items():
            each = [count_rounds(*one, config) for one in encoded]
            found = Counts(*map(sum, zip(*each, strict=True)))
            kept = found.tokens / found.rounds
            alone = alone or kept
            numbers = f"{found.tokens}", f"{found.rounds}", f"{kept:.2f}", f"{kept / alone:.2f}"
            table.add_row(name, label, *numbers)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
