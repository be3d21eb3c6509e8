"""Small Python functions: a fixed set of bodies under many names."""

import random

from eagle3_tools.make_demo.corpus.conversation import Conversation, exchange

VERBS = "get find make compute build fetch calc eval run do".split()
NOUNS = (
    "value result total output item answer data score entry number thing part record field count"
).split()
PARAMETERS = "items values numbers data xs seq elements entries".split()
QUESTIONS = (
    "Write a Python function {name}({arg}) that {task}.",
    "Define a Python function called {name} which takes {arg} and {task}.",
    "In Python, write {name}({arg}): it {task}.",
)

# task -> lines of the body; {arg} is the parameter, every body is a complete function.
BODIES: dict[str, tuple[str, ...]] = {
    "returns the sum of the numbers": (
        "total = 0", "for x in {arg}:", "    total += x", "return total",
    ),
    "returns the product of the numbers": (
        "product = 1", "for x in {arg}:", "    product *= x", "return product",
    ),
    "returns the largest number": (
        "best = {arg}[0]", "for x in {arg}:", "    if x > best:", "        best = x",
        "return best",
    ),
    "returns the smallest number": (
        "best = {arg}[0]", "for x in {arg}:", "    if x < best:", "        best = x",
        "return best",
    ),
    "counts the even numbers": (
        "count = 0", "for x in {arg}:", "    if x % 2 == 0:", "        count += 1",
        "return count",
    ),
    "counts the odd numbers": (
        "count = 0", "for x in {arg}:", "    if x % 2 == 1:", "        count += 1",
        "return count",
    ),
    "returns the mean": ("return sum({arg}) / len({arg})",),
    "returns the squares": ("return [x * x for x in {arg}]",),
    "returns the doubles": ("return [2 * x for x in {arg}]",),
    "returns the positive numbers": ("return [x for x in {arg} if x > 0]",),
    "reverses the list": (
        "result = []", "for x in {arg}:", "    result.insert(0, x)", "return result",
    ),
    "removes duplicates": (
        "result = []", "for x in {arg}:", "    if x not in result:",
        "        result.append(x)", "return result",
    ),
    "returns the running totals": (
        "total = 0", "result = []", "for x in {arg}:", "    total += x",
        "    result.append(total)", "return result",
    ),
    "checks that the list is sorted": (
        "for i in range(len({arg}) - 1):", "    if {arg}[i] > {arg}[i + 1]:",
        "        return False", "return True",
    ),
    "counts each element": (
        "counts = {{}}", "for x in {arg}:", "    counts[x] = counts.get(x, 0) + 1",
        "return counts",
    ),
    "returns the index of the largest number": (
        "best = 0", "for i in range(len({arg})):", "    if {arg}[i] > {arg}[best]:",
        "        best = i", "return best",
    ),
}  # fmt: skip


def draw(rng: random.Random) -> Conversation:
    """Draw a random function request with its code."""
    task = rng.choice(list(BODIES))
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    arg = rng.choice(PARAMETERS)
    question = rng.choice(QUESTIONS).format(name=name, arg=arg, task=task)
    return exchange(f"{name}/{arg}/{task}", question, f"```python\n{source(name, arg, task)}```")


def source(name: str, arg: str, task: str) -> str:
    """Return the Python source of the function `name(arg)` that does `task`."""
    body = "".join(f"    {line.format(arg=arg)}\n" for line in BODIES[task])
    return f"def {name}({arg}):\n{body}"
