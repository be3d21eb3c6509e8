"""Clients that send pictures: OpenAI's package, and lm_eval's multimodal path."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from clients.client import Client, Counts, Server
from clients.lm_eval_client import read as read_samples

from eagle3_tools.make_demo.pictures.questions import FILE, write_questions

SCRIPT = Path(__file__).with_name("picture_script.py")
PICTURES, QUESTIONS, TASK = "pictures", 24, "pictures"
SEED = 5
YAML = """\
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_image: !function shown.images
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["<|im_end|>"], max_gen_toks: 40, temperature: 0}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
SHOWN = """\
from PIL import Image


def images(document):
    return [Image.open(f"{directory}/{{document['image']}}")]
"""


def openai_command(server: Server, results: Path, *, questions: int = QUESTIONS) -> list[str]:
    write_questions(results / PICTURES, questions, SEED)
    return ["python", str(SCRIPT), f"{server.url}/v1", PICTURES, "result.json"]


def openai_read(results: Path) -> Counts:
    """An answer that differs where it is streamed, or from responses, has failed."""
    outcome = json.loads((results / "result.json").read_text())
    answered = sum(map(bool, outcome["said"]))
    return Counts(answered, len(outcome["said"]) - answered + (not outcome["same"]))


def openai_accuracy(results: Path) -> float:
    lines = (results / PICTURES / FILE).read_text().splitlines()
    said = json.loads((results / "result.json").read_text())["said"]
    right = [json.loads(line)["answer"] for line in lines]
    return sum(a == b for a, b in zip(said, right, strict=True)) / len(right)


def lm_eval_command(server: Server, results: Path, *, questions: int = QUESTIONS) -> list[str]:
    """The command for tasks of text; a task with `doc_to_image` adds its image."""
    directory = results / PICTURES
    write_questions(directory, questions, SEED)
    (directory / "pictures.yaml").write_text(YAML.format(task=TASK, data=directory / FILE))
    (directory / "shown.py").write_text(SHOWN.format(directory=directory))
    argv = ["lm_eval", "--model", "local-chat-completions", "--apply_chat_template"]
    argv += ["--model_args", f"base_url={server.url}/v1/chat/completions,max_images=1"]
    argv += ["--tasks", TASK, "--include_path", PICTURES, "--batch_size", "1"]
    return [*argv, "--output_path", "out", "--log_samples"]


def lm_eval_accuracy(results: Path) -> float:
    (result,) = results.glob("out/**/results_*.json")
    return json.loads(result.read_text())["results"][TASK]["exact_match,none"]


OPENAI = Client("openai, pictures", "lm_eval", "openai", openai_command, openai_read)
LM_EVAL = Client(
    "lm_eval local-chat-completions, pictures",
    "lm_eval",
    "lm_eval",
    lm_eval_command,
    read_samples,
    {"HF_HUB_OFFLINE": "1"},
)
CLIENTS = (OPENAI, LM_EVAL)
Accuracy = Callable[[Path], float]
SHORT: Sequence[tuple[Client, Callable[..., list[str]], Accuracy]] = (
    (OPENAI, partial(openai_command, questions=8), openai_accuracy),
    (LM_EVAL, partial(lm_eval_command, questions=8), lm_eval_accuracy),
)
"""Of 8 questions, and how many of them are answered right."""
