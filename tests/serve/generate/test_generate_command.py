"""eagle3-generate's command line, and what it prints with --json."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import CharTokenizer

from eagle3_jax.engine import RequestOutput, Round
from serve.generate.flags import parse_generate_flags
from serve.generate.offline import Generated


def test_prompts_come_from_flags_then_files_in_order(tmp_path: Path) -> None:
    lines = tmp_path / "prompts"
    lines.write_text('plain\n{"prompt": "an object", "id": 7}\n\n"a string"\n{not json}\n')
    options = parse_generate_flags(["m", "--prompt", "first", "--prompts-file", str(lines)])
    assert options.prompts == ("first", "plain", "an object", "a string", "{not json}")


def test_the_model_is_named_as_other_engines_have_it() -> None:
    asked = ["--prompt", "a"]
    for named in (["org/kimi"], ["--model", "org/kimi"], ["--model-path=org/kimi"]):
        options = parse_generate_flags([*named, *asked])
        assert options.sources.target is not None and options.sources.target.name == "org/kimi"


def test_the_form_of_an_answer_is_a_text_or_a_file(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "null"}')
    for argv, form in (
        (["--json-schema", f"@{schema}"], {"json": '{"type": "null"}'}),
        (["--regex", "a+"], {"regex": "a+"}),
        (["--choice", "a", "--choice", "@b"], {"choice": ["a", "@b"]}),
        (["--grammar", 'start: "a"'], {"grammar": 'start: "a"'}),
        ([], {}),
    ):
        assert parse_generate_flags(["m", "--prompt", "a", *argv]).form == form


def test_only_given_sampling_flags_override_the_models_defaults() -> None:
    """tests/serve/test_option_table.py has every flag."""
    given = ["--temperature", "0", "--stop", "x", "--bad-words", "no"]
    options = parse_generate_flags(["m", "--prompt", "a", *given])
    assert options.sampling == {"temperature": 0.0, "stop": ["x"]}
    assert options.bad_words == ("no",)


@pytest.mark.parametrize(
    "argv, naming",
    [
        (["m"], "--prompt"),
        (["m", "--prompt", "a", "--num-speculative-tokens", "3"], "--draft"),
        (["--demo", "--draft", "d", "--prompt", "a"], "--draft"),
        (["m", "--prompts-file", "/does/not/exist"], "/does/not/exist"),
        (["m", "--prompt", "a", "--json-schema", "@/not/there"], "/not/there"),
        (["m", "--prompt", "a", "--regex", "a", "--choice", "a"], "--regex, --choice"),
        (["m", "--prompt", "a", "--logit-bias", "[5]"], "JSON object"),
        (["m", "--prompt", "a", "--logit-bias", '{"x": 1}'], "token ids"),
    ],
)
def test_mistakes_end_with_status_2_and_one_line(
    argv: list[str], naming: str, mistake: Callable[..., str]
) -> None:
    assert naming in mistake(lambda: parse_generate_flags(argv))


def output(tokens: tuple[int, ...], last: bool, *rounds: Round) -> RequestOutput:
    finish = "stop" if last else None
    return RequestOutput("0", tokens, "x" * len(tokens), finish, None, rounds, 3, 5)


def printed(*outputs: RequestOutput) -> dict[str, object]:
    generated = Generated()
    for one in outputs:
        generated.add(one)
    return json.loads(generated.as_json(CharTokenizer(), {}))


def test_json_line_adds_up_over_the_outputs() -> None:
    """The second round has no room for drafts, the last ends with its first token."""
    assert printed(
        output((1,), False),
        output((2, 3, 4), False, Round(3, 3, 3, 2, 3)),
        output((5, 6), True, Round(3, 3, 0, 0, 1), Round(3, 3, 3, 1, 1)),
    ) == {
        "token_ids": [1, 2, 3, 4, 5, 6],
        "text": "xxxxxx",
        "finish_reason": "stop",
        "rounds": 3,
        "accepted": [2, 0, 1],
        "verified": [3, 0, 3],
        "kept": [3, 1, 1],
        "accept_length": 2.5,
        "accept_length_eos_corrected": 2.0,
        "seed": 5,
    }
    assert printed(output((1,), True))["accept_length"] is None, "of the prefill alone"
    plain = printed(output((1,), False), output((2,), True, Round(0, 0, 0, 0, 1)))
    assert plain["accept_length"] == plain["accept_length_eos_corrected"] == 1
