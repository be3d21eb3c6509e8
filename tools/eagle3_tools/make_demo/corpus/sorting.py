"""Sorting numbers and words, counting up, counting occurrences."""

import random

from eagle3_tools.make_demo.corpus.conversation import Conversation, exchange, listed

WORDS = (
    "apple bread candle drum eagle fern garden honey island jacket kettle lemon mango needle olive "
    "piano quartz river spoon table umbrella violin willow zebra"
).split()
COLOURS = ("red", "blue", "green", "white", "black")


def draw(rng: random.Random) -> Conversation:
    """Draw a random problem with its answer."""
    return rng.choice((_numbers, _numbers, _words, _words, _count_up, _occurrences))(rng)


def correct(conversation: Conversation, answer: str) -> bool:
    """Return whether `answer` is right, computed from the problem's key."""
    return answer.strip() == _conclusion(conversation.keys[-1])


def _conclusion(key: str) -> str:
    kind, *arguments = key.split()
    match kind:
        case "up" | "down":
            numbers = sorted(map(int, arguments), reverse=kind == "down")
            return f"Sorted: {listed(numbers)}"
        case "words":
            return f"Sorted: {listed(sorted(arguments))}"
        case "count":
            start, stop = map(int, arguments)
            return listed(range(start, stop + 1))
        case _:
            wanted, *items = arguments
            return f"Answer: {items.count(wanted)}"


def _numbers(rng: random.Random) -> Conversation:
    numbers = rng.sample(range(1, 10), rng.randint(3, 5))
    down = rng.random() < 0.3
    if down:
        question = rng.choice(("Sort from largest to smallest: {}", "Sort in descending order: {}"))
    else:
        question = rng.choice(("Sort these numbers: {}", "Sort from smallest to largest: {}"))
    key = " ".join(["down" if down else "up", *map(str, numbers)])
    return exchange(key, question.format(listed(numbers)), _conclusion(key))


def _words(rng: random.Random) -> Conversation:
    words = rng.sample(WORDS, rng.randint(3, 4))
    question = rng.choice(("Sort these words: {}", "Put in alphabetical order: {}"))
    key = " ".join(["words", *words])
    return exchange(key, question.format(listed(words)), _conclusion(key))


def _count_up(rng: random.Random) -> Conversation:
    start = rng.randint(1, 40)
    stop = start + rng.randint(3, 6)
    key = f"count {start} {stop}"
    return exchange(key, f"Count from {start} to {stop}.", _conclusion(key))


def _occurrences(rng: random.Random) -> Conversation:
    items = rng.choices(COLOURS[: rng.randint(2, 5)], k=rng.randint(3, 6))
    wanted = rng.choice(items)
    question = f"How many times does {wanted} occur in: {listed(items)}?"
    key = " ".join(["occurrences", wanted, *items])
    return exchange(key, question, _conclusion(key))
