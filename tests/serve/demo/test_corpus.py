"""The corpus is reproducible, split without overlap, and its answers are right by other means."""

import ast
import hashlib
import json
import re
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest

from serve.demo.corpus import CATEGORIES, conversations, correct, held_out_prompts, mixture
from serve.demo.corpus.facts import FACTS

each_category = pytest.mark.parametrize("category", CATEGORIES)


def answers(category: str, count: int = 300):
    """(question, answer) texts of training conversations with one question."""
    for c in islice(conversations(category, "train", 7), count):
        if len(c.messages) == 2:
            yield c.messages[0]["content"], c.messages[1]["content"]


@each_category
def test_the_same_seed_gives_the_same_conversations(category: str) -> None:
    first, again = (list(islice(conversations(category, "train", 3), 50)) for _ in range(2))
    assert first == again
    assert first != list(islice(conversations(category, "train", 4), 50))


def test_the_mixture_is_the_one_the_demo_was_trained_on() -> None:
    text = json.dumps([c.messages for c in islice(mixture("train", 0), 200)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b9ec3aa8b524d82e"


@each_category
def test_no_held_out_question_is_ever_trained_on(category: str) -> None:
    held = {key for c in islice(conversations(category, "held_out", 0), 1000) for key in c.keys}
    trained = {key for c in islice(conversations(category, "train", 0), 5000) for key in c.keys}
    assert held and trained and not held & trained
    questions = {json.dumps([c.prompt, c.tools]) for c in held_out_prompts(category, 100)}
    seen = {
        json.dumps([c.prompt, c.tools]) for c in islice(conversations(category, "train", 0), 5000)
    }
    assert len(questions) == 100 and not questions & seen


@each_category
def test_the_checker_takes_the_answer_and_refuses_another(category: str) -> None:
    prompts = held_out_prompts(category, 40)
    for c, other in pairwise(prompts):
        text = said(c.answer)
        assert correct(category, c, text)
        if text != said(other.answer):
            assert not correct(category, c, text[:-1] + "?")


def said(message: dict[str, Any]) -> str:
    """What the model has to say for this message, special tokens as text."""
    calls = [
        f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
        + call["function"]["arguments"]
        + "<|tool_call_end|>"
        for call in message.get("tool_calls", ())
    ]
    section = ["<|tool_calls_section_begin|>", *calls, "<|tool_calls_section_end|>"]
    return message["content"] + ("".join(section) if calls else "")


def found(match: re.Match[str] | None) -> re.Match[str]:
    assert match is not None
    return match


def test_every_equation_of_worked_arithmetic_holds() -> None:
    """Each step is recomputed by Python, the columns by str(), the result by the question."""
    for question, answer in answers("arithmetic"):
        head, *steps, last = answer.split("\n")
        a, operator, b = found(re.fullmatch(r"(\d+) ([-+*]) (\d+)", head)).groups()
        result = eval(f"{int(a)}{operator}{int(b)}")
        assert last == f"Answer: {result}"
        assert sorted(map(int, re.findall(r"\d+", question))) == sorted((int(a), int(b)))
        written = "".join(found(re.search(r"write (\d)", step))[1] for step in reversed(steps))
        carry = found(re.search(r"(?:carry|borrow) (\d)$", steps[-1]))[1]
        assert int((carry if operator != "-" else "") + written) == result
        for step in steps:
            for left, right in re.findall(r"([-+*\d]+)=(-?\d+)", step):
                assert eval(re.sub(r"\b0+(\d)", r"\1", left)) == int(right)


def test_every_sorting_answer_is_sorted_and_complete() -> None:
    for question, answer in answers("sorting"):
        asked = question.split(": ", 1)[1] if ": " in question else question
        if answer.startswith("Sorted: "):
            items, done = asked.split(", "), answer.removeprefix("Sorted: ").split(", ")
            number = items[0].isdigit()
            down = "largest to" in question or "descending" in question
            assert done == sorted(items, key=int if number else str, reverse=down)
        elif question.startswith("Count"):
            start, stop, *step = map(int, re.findall(r"\d+", question))
            counted = list(map(int, answer.split(", ")))
            assert counted == list(range(start, stop + 1, step[0] if step else 1))
        else:
            wanted = found(re.search(r"does (\w+) occur", question))[1]
            total = len(re.findall(rf"\b{wanted}\b", asked.rstrip("?")))
            assert answer == f"Answer: {total}"


REFERENCE: dict[str, Callable[[list[int]], object]] = {
    "returns the sum of the numbers": sum,
    "returns the largest number": max,
    "returns the smallest number": min,
    "counts the even numbers": lambda xs: len([x for x in xs if x % 2 == 0]),
    "counts the odd numbers": lambda xs: len([x for x in xs if x % 2]),
    "returns the mean": lambda xs: sum(xs) / len(xs),
    "returns the squares": lambda xs: [x**2 for x in xs],
    "returns the doubles": lambda xs: [x + x for x in xs],
    "returns the positive numbers": lambda xs: list(filter(lambda x: x > 0, xs)),
    "reverses the list": lambda xs: xs[::-1],
    "removes duplicates": lambda xs: list(dict.fromkeys(xs)),
    "checks that the list is sorted": lambda xs: xs == sorted(xs),
    "counts each element": lambda xs: {x: xs.count(x) for x in xs},
    "returns the index of the largest number": lambda xs: xs.index(max(xs)),
    "returns the running totals": lambda xs: [sum(xs[: i + 1]) for i in range(len(xs))],
    "returns the product of the numbers": lambda xs: __import__("math").prod(xs),
}


def test_every_function_does_what_was_asked() -> None:
    seen = set()
    for question, answer in answers("functions"):
        code = answer.removeprefix("```python\n").removesuffix("```")
        (function,) = ast.parse(code).body
        assert isinstance(function, ast.FunctionDef) and function.name in question
        (task,) = (task for task in REFERENCE if task in question)
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        for numbers in ([3, 1, 2], [5], [2, 2, -4, 7, 2], [1, 2, 3]):
            assert namespace[function.name](list(numbers)) == REFERENCE[task](numbers), task
        seen.add(task)
    assert seen == set(REFERENCE)


def test_structured_answers_are_json_and_calls_use_declared_tools() -> None:
    kinds = set()
    for c in islice(conversations("structured", "train", 7), 300):
        for message in c.messages:
            for call in message.get("tool_calls", ()):
                function = call["function"]
                (schema,) = (
                    t["function"]["parameters"]
                    for t in c.tools
                    if t["function"]["name"] == function["name"]
                )
                arguments = json.loads(function["arguments"])
                assert sorted(arguments) == sorted(schema["required"])
                assert call["id"] == f"functions.{function['name']}:0"
                kinds.add("call")
        if not c.tools:
            value = json.loads(c.answer["content"])
            question = c.messages[0]["content"]
            leaves = [v for v in value.values() if not isinstance(v, (dict, bool))]
            assert all(str(leaf) in question for leaf in leaves)
            kinds.add("json")
        elif c.messages[-2]["role"] == "tool":
            result = json.loads(c.messages[-2]["content"])
            assert str(result["celsius"]) in c.answer["content"]
            assert result["sky"] in c.answer["content"]
            kinds.add("result")
    assert kinds == {"call", "json", "result"}


def test_dialogue_keeps_to_the_table() -> None:
    for c in islice(conversations("facts", "train", 7), 300):
        (town,) = {town for town in FACTS if town in c.messages[0]["content"]}
        for message in c.messages[1::2]:
            assert town in message["content"]
            assert any(str(value) in message["content"] for value in FACTS[town].values())


def test_an_unknown_category_or_split_is_refused() -> None:
    with pytest.raises(ValueError, match="category must be one of"):
        next(conversations("poetry", "train", 0))
    with pytest.raises(ValueError, match="split must be one of"):
        next(conversations("facts", "test", 0))
