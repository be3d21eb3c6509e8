"""Asks about pictures with the openai package: a chat about each, the first also streamed and as a
response.

Runs in the client's own environment: nothing of ours is imported.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import openai

MODEL = "eagle3-demo-vision"


def main() -> None:
    """argv: the address that ends in /v1, the directory of pictures, and the file to write."""
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    directory = Path(sys.argv[2])
    lines = (directory / "questions.jsonl").read_text().splitlines()
    asked = [json.loads(line) for line in lines]
    said = [whole(client, directory, entry) for entry in asked]
    streamed_too, response_too = streamed(client, directory, asked[0]), response(client, directory)
    same = streamed_too == response_too == said[0]
    Path(sys.argv[3]).write_text(json.dumps({"said": said, "same": same}))


def whole(client: Any, directory: Path, entry: dict[str, str]) -> str:
    answer = client.chat.completions.create(**_chat(directory, entry))
    assert answer.usage.prompt_tokens > 9, "the picture's tokens count"
    return answer.choices[0].message.content


def streamed(client: Any, directory: Path, entry: dict[str, str]) -> str:
    with client.chat.completions.create(**_chat(directory, entry), stream=True) as stream:
        return "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices)


def response(client: Any, directory: Path) -> str:
    entry = json.loads((directory / "questions.jsonl").read_text().splitlines()[0])
    image = {"type": "input_image", "image_url": _url(directory, entry)}
    content = [image, {"type": "input_text", "text": entry["question"]}]
    answer = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": content}], temperature=0
    )
    return answer.output_text


def _chat(directory: Path, entry: dict[str, str]) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": _url(directory, entry)}}
    content = [image, {"type": "text", "text": entry["question"]}]
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 40}


def _url(directory: Path, entry: dict[str, str]) -> str:
    data = base64.b64encode((directory / entry["image"]).read_bytes()).decode()
    return f"data:image/png;base64,{data}"


main()
