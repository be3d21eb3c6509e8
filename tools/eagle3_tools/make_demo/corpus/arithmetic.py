"""Addition, subtraction and multiplication by one digit, worked column by column."""

import random
import re

from eagle3_tools.make_demo.corpus.conversation import Conversation, exchange

PLACES = ("ones", "tens", "hundreds")
QUESTIONS = {
    "+": (
        "What is {a} + {b}?",
        "Add {a} and {b}.",
        "Compute {a} + {b}.",
        "A shop sold {a} pens on Monday and {b} on Tuesday. How many in all?",
    ),
    "-": (
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "Compute {a} - {b}.",
        "There were {a} birds and {b} flew away. How many are left?",
    ),
    "*": (
        "What is {a} * {b}?",
        "Multiply {a} by {b}.",
        "Compute {a} * {b}.",
        "There are {b} boxes with {a} nails each. How many nails?",
    ),
}


def draw(rng: random.Random) -> Conversation:
    """Draw a random problem with its worked answer."""
    operator = rng.choice("++--*")
    a, b = _operands(rng, operator)
    question = rng.choice(QUESTIONS[operator]).format(a=a, b=b)
    return exchange(f"{a}{operator}{b}", question, worked(a, operator, b))


def worked(a: int, operator: str, b: int) -> str:
    """Return the full written answer to `a operator b`."""
    steps = {"+": _add, "-": _subtract, "*": _multiply}[operator](a, b)
    result = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return "\n".join([*steps, f"Answer: {result}"])


def correct(conversation: Conversation, answer: str) -> bool:
    """Return whether `answer` ends with the right result, computed from the problem's key."""
    a, operator, b = _parse(conversation.keys[-1])
    result = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return answer.strip().endswith(f"Answer: {result}")


def _parse(key: str) -> tuple[int, str, int]:
    match = re.fullmatch(r"(\d+)([-+*])(\d+)", key)
    assert match, f"not an arithmetic key: {key}"
    return int(match[1]), match[2], int(match[3])


def _operands(rng: random.Random, operator: str) -> tuple[int, int]:
    a, b = (rng.randrange(10 ** rng.choice((1, 2, 3, 3))) for _ in range(2))
    if operator == "*":
        return a, rng.randrange(2, 10)
    return (max(a, b), min(a, b)) if operator == "-" else (a, b)


def _columns(number: int) -> list[int]:
    """Return the digits of a number below 1000, ones first."""
    return [number // 10**place % 10 for place in range(len(PLACES))]


def _add(a: int, b: int) -> list[str]:
    lines, carry = [f"{a:03} + {b:03}"], 0
    for place, x, y in zip(PLACES, _columns(a), _columns(b), strict=True):
        total = x + y + carry
        line = f"{place}: {x}+{y}+{carry}={total}, write {total % 10}, carry {total // 10}"
        lines.append(line)
        carry = total // 10
    return lines


def _subtract(a: int, b: int) -> list[str]:
    lines, borrow = [f"{a:03} - {b:03}"], 0
    for place, x, y in zip(PLACES, _columns(a), _columns(b), strict=True):
        difference = x - y - borrow
        digit, following = difference % 10, int(difference < 0)
        lines.append(f"{place}: {x}-{y}-{borrow}={difference}, write {digit}, borrow {following}")
        borrow = following
    return lines


def _multiply(a: int, b: int) -> list[str]:
    lines, carry = [f"{a:03} * {b}"], 0
    for place, x in zip(PLACES, _columns(a), strict=True):
        product = x * b
        total = product + carry
        lines.append(
            f"{place}: {x}*{b}={product}, {product}+{carry}={total}, "
            f"write {total % 10}, carry {total // 10}"
        )
        carry = total // 10
    return lines
