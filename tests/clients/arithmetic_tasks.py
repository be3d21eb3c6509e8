"""Tasks for lm_eval from the embedded pair's held-out arithmetic; nothing is downloaded."""

import json
from pathlib import Path

from convert.text.tokenizer import load_tokenizer
from eagle3_tools.make_demo.corpus import held_out_prompts
from serve.demo import demo_target_dir

COMMON = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
"""
GENERATION = (
    COMMON
    + """\
doc_to_text: "{{{{{field}}}}}"
doc_to_target: "{{{{result}}}}"
generation_kwargs: {{until: ["<|im_end|>"], max_gen_toks: 160, temperature: 0}}
filter_list:
  - name: last-line
    filter:
      - {{function: regex, regex_pattern: "Answer: (-?[0-9]+)$"}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
)
CHOICE = (
    COMMON
    + """\
doc_to_text: "{{{{solved}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
)
ROLLING = (
    COMMON
    + """\
doc_to_text: ""
doc_to_target: "{{{{document}}}}"
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: bits_per_byte}}
"""
)


def write_tasks(directory: Path, count: int) -> None:
    """The YAML of four tasks over `count` held-out problems.

    `worked_arithmetic` asks for the worked answer to a prompt as the model reads it,
    `arithmetic_chat` to a message; `arithmetic_choice` for one of four results behind the worked
    lines; `arithmetic_rolling` for the likelihood of the whole text.
    """
    directory.mkdir(parents=True)
    data = directory / "arithmetic.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents(count)))
    forms = {
        "worked_arithmetic": GENERATION.replace("{field}", "prompt"),
        "arithmetic_chat": GENERATION.replace("{field}", "question"),
        "arithmetic_choice": CHOICE,
        "arithmetic_rolling": ROLLING,
    }
    kinds = {"arithmetic_choice": "multiple_choice", "arithmetic_rolling": "loglikelihood_rolling"}
    for name, form in forms.items():
        text = form.format(name=name, data=data, kind=kinds.get(name, "generate_until"))
        (directory / f"{name}.yaml").write_text(text)


def documents(count: int) -> list[dict[str, object]]:
    """Question, prompt with the chat template applied, right result, whole text, and choices."""
    tokenizer = load_tokenizer(demo_target_dir())
    found = []
    for conversation in held_out_prompts("arithmetic", count):
        answer = conversation.answer["content"]
        worked, _, result = answer.rpartition("Answer: ")
        prompt = tokenizer.apply_chat_template(conversation.prompt)
        choices = [str(int(result) + shift) for shift in (-10, 0, 1, 10)]
        found.append(
            {
                "question": conversation.prompt[-1]["content"],
                "prompt": prompt,
                "result": result,
                "solved": f"{prompt}{worked}Answer: ",
                "choices": choices,
                "label": choices.index(result),
                "document": f"{prompt}{answer}<|im_end|>",
            }
        )
    return found
