"""Images in requests of every protocol: the prompt, their places in it, and their counts."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from chat_tokenizers import kimi
from fake_server import Served
from image_goldens import ITEMS, read_item
from seeing import chat, data_url, golden_file, part, picture, reader, seeing, text, vision_config

from eagle3_jax.engine import Request
from serve.images.reader import NoImages

PAD = vision_config().media_placeholder_token_id
CHAT = "/v1/chat/completions"
NAMES = ("exact", "grey", "tiny")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with seeing() as served:
        yield served


def asked(server: Served, body: dict[str, Any]) -> Request:
    answer = server.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return server.engine.asked[-1]


def rendered(prompt: list[int]) -> str:
    return kimi().decode(prompt, skip_special=False)


def test_images_stand_where_they_are_said_among_the_text(server: Served) -> None:
    files = [golden_file(name) for name in NAMES]
    parts = [part(files[0]), text("is above"), part(files[1]), part(files[2]), text("which?")]
    request = asked(server, chat(*parts))
    boxes = [
        f"<|media_begin|>image<|media_content|>{'<|media_pad|>' * ITEMS[name]['tokens']}"
        "<|media_end|>\n"
        for name in NAMES
    ]
    content = f"{boxes[0]}is above{boxes[1]}{boxes[2]}which?"
    assert rendered(request.prompt_ids).startswith(
        f"<|im_user|>user<|im_middle|>{content}<|im_end|>"
    )
    for image, name in zip(request.images, NAMES, strict=True):
        expected = read_item(name, vision_config())
        assert (image.item.patches == expected.patches).all()
        assert image.item.digest == expected.digest
        assert request.prompt_ids[image.start : image.end] == [PAD] * expected.num_tokens
    places = [i for i, token in enumerate(request.prompt_ids) if token == PAD]
    assert places == [p for image in request.images for p in range(image.start, image.end)]


def test_a_typed_placeholder_is_text(server: Served) -> None:
    typed = "<|media_pad|> <|media_begin|>"
    request = asked(server, chat(text(typed), part(golden_file("tiny")), text(typed)))
    assert request.prompt_ids.count(PAD) == 1
    (image,) = request.images
    assert request.prompt_ids[image.start] == PAD
    assert rendered(request.prompt_ids).count(typed) == 2


def test_the_same_image_is_one_item_and_another_is_not(server: Served) -> None:
    red, blue = picture(colour="red"), picture(colour="blue")
    request = asked(server, chat(part(red), part(blue), part(red)))
    first, other, again = (image.item for image in request.images)
    assert first is again and first.digest != other.digest
    assert asked(server, chat(part(red))).images[0].item is first


def test_usage_and_counts_are_of_expanded_prompts(server: Served) -> None:
    body = chat(part(golden_file("down")), text("how many?"))
    usage = server.http.post(CHAT, json=body).json()["usage"]
    expected = len(server.engine.asked[-1].prompt_ids)
    assert usage["prompt_tokens"] == expected > ITEMS["down"]["tokens"]
    tokenized = server.http.post("/tokenize", json={"messages": body["messages"]}).json()
    assert tokenized["count"] == len(tokenized["tokens"]) == expected
    content = [image_block(golden_file("down")), text("how many?")]
    counted = server.http.post(
        "/v1/messages/count_tokens", json={"messages": [{"role": "user", "content": content}]}
    )
    assert counted.json()["input_tokens"] == expected


def image_block(data: bytes) -> Any:
    """An image of the Messages API."""
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(data).decode()}
    return {"type": "image", "source": source}


def through_chats(server: Served, files: list[bytes]) -> None:
    content: Any = [text("Look:"), part(files[0]), text("and"), part(files[1])]
    call = {"id": "functions.see:0", "type": "function", "function": {"name": "see"}}
    messages: list[Any] = [{"role": "user", "content": content}]
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": [part(files[2]), text("seen")]},
    ]
    call["function"]["arguments"] = "{}"
    server.openai.chat.completions.create(model="fake", messages=messages, max_tokens=9)


def through_messages(server: Served, files: list[bytes]) -> None:
    client = anthropic.Anthropic(base_url=str(server.http.base_url), api_key="none", max_retries=0)
    content = [text("Look:"), image_block(files[0]), text("and"), image_block(files[1])]
    use: Any = {"type": "tool_use", "id": "functions.see:0", "name": "see", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": use["id"]}
    result["content"] = [image_block(files[2]), text("seen")]
    messages: list[Any] = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(model="fake", messages=messages, max_tokens=9)


def items_of(files: list[bytes]) -> list[Any]:
    def image(data: bytes) -> dict[str, Any]:
        return {"type": "input_image", "image_url": data_url(data), "detail": "auto"}

    def words(said: str) -> dict[str, Any]:
        return {"type": "input_text", "text": said}

    call = {"type": "function_call", "call_id": "functions.see:0", "name": "see", "arguments": "{}"}
    content = [words("Look:"), image(files[0]), words("and"), image(files[1])]
    output: dict[str, Any] = {"type": "function_call_output", "call_id": call["call_id"]}
    output["output"] = [image(files[2]), words("seen")]
    return [{"role": "user", "content": content}, call, output]


def through_responses(server: Served, files: list[bytes]) -> None:
    create: Any = server.openai.responses.create
    create(model="fake", input=items_of(files), max_output_tokens=9)


@pytest.mark.parametrize("conversation", [through_messages, through_responses])
def test_a_conversation_is_the_same_request_through_every_protocol(
    server: Served, conversation: Callable[[Served, list[bytes]], None]
) -> None:
    files = [golden_file(name) for name in NAMES]
    through_chats(server, files)
    conversation(server, files)
    expected, found = server.engine.asked[-2:]
    assert rendered(found.prompt_ids) == rendered(expected.prompt_ids)
    assert found.prompt_ids == expected.prompt_ids
    assert found.images == expected.images and len(found.images) == 3


def test_a_stored_response_keeps_its_images_and_lists_them(server: Served) -> None:
    files = [golden_file(name) for name in NAMES]
    create: Any = server.openai.responses.create
    first = create(model="fake", input=items_of(files), max_output_tokens=9)
    before = server.engine.asked[-1]
    second = create(
        model="fake", input="And now?", previous_response_id=first.id, max_output_tokens=9
    )
    request = server.engine.asked[-1]
    assert [image.item for image in request.images] == [image.item for image in before.images]
    # What the template drops of a past answer lies behind the last image.
    end = before.images[-1].end
    assert request.prompt_ids[:end] == before.prompt_ids[:end]
    listed = server.openai.responses.input_items.list(second.id, order="asc").data
    content = listed[0].model_dump()["content"]
    assert [one["type"] for one in content] == ["input_text", "input_image"] * 2
    assert content[1]["image_url"] == data_url(files[0])
    assert listed[2].model_dump()["output"][0]["image_url"] == data_url(files[2])


IMAGE = part(picture())
REFUSED = {
    "text or image_url": chat(
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}}
    ),
    "'input_audio' is not implemented": chat({"type": "input_audio", "input_audio": {}}),
    "needs an object `image_url`": chat({"type": "image_url"}),
    "detail of an image": chat(part(picture(), detail="ultra")),
    "uuid is not implemented": chat({**IMAGE, "uuid": "mine"}),
    "roles user and tool": {"messages": [{"role": "system", "content": [IMAGE]}]},
    "a prompt may have 128 images": chat(*[IMAGE] * 129),
    "says it is 'video/mp4'": chat(part(data_url(picture(), "video/mp4"))),
    "has no base64": chat(part("data:image/png,abc")),
    "base64 is damaged": chat(part("data:image/png;base64,a*b")),
    "begin with http(s): or file:": chat(part("ftp://host/a.png")),
    "none of these": chat(part(b"<svg xmlns='http://www.w3.org/2000/svg'/>")),
    "none that images are fetched from": chat(part("http://example.com/a.png")),
    "files of the server are not read": chat(part("file:///etc/passwd")),
    "--mm_processor_kwargs": chat(IMAGE, mm_processor_kwargs={"a": 1}),
}


@pytest.mark.parametrize("naming", REFUSED)
def test_what_is_not_taken_is_400_with_one_line(server: Served, naming: str) -> None:
    answer = server.http.post(CHAT, json=REFUSED[naming])
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert naming.removeprefix("--") in message and "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("why", "naming"), [(NoImages(), "no vision"), (NoImages("not here"), "not here")]
)
def test_a_server_without_vision_says_so(why: NoImages, naming: str) -> None:
    source = {"type": "url", "url": "https://example.com/a.png"}
    block = {"role": "user", "content": [{"type": "image", "source": source}]}
    shown = {"role": "user", "content": [{"type": "input_image", "image_url": "https://a.b/c"}]}
    bodies = {
        CHAT: chat(IMAGE),
        "/v1/messages": {"messages": [block], "max_tokens": 9},
        "/v1/messages/count_tokens": {"messages": [block]},
        "/v1/responses": {"input": [shown]},
    }
    with seeing(why) as server:
        for path, body in bodies.items():
            answer = server.http.post(path, json=body)
            assert answer.status_code == 400 and naming in answer.json()["error"]["message"], path
        assert server.http.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]


def test_a_server_with_vision_says_so(server: Served) -> None:
    assert server.http.get("/v1/models").json()["data"][0]["input_modalities"] == ["text", "image"]
    for path in ("/server_info", "/model_info"):
        assert server.http.get(path).json()["has_image_understanding"] is True


def test_limits_are_named() -> None:
    with reader(most=1, max_bytes=200, max_pixels=900) as limited, seeing(limited) as server:
        for body, naming in (
            (chat(IMAGE, IMAGE), "--limit-mm-per-prompt"),
            (chat(part(b"x" * 300)), "larger than 200 bytes"),
            (chat(part(picture(31, 31))), "may have 900 pixels, got 31 x 31"),
        ):
            answer = server.http.post(CHAT, json=body)
            assert answer.status_code == 400 and naming in answer.json()["error"]["message"]
        assert server.http.post(CHAT, json=chat(part(picture()))).status_code == 200
    with reader(max_pixels=1000) as limited, seeing(limited) as server:
        parts = [part(picture(31, 31, f"rgb({i},0,0)")) for i in range(9)]
        answer = server.http.post(CHAT, json=chat(*parts))
        assert answer.status_code == 400 and "pixels together" in answer.json()["error"]["message"]
        # Those that are in memory are not decoded again.
        assert server.http.post(CHAT, json=chat(*parts[:8])).status_code == 200


def test_a_prompt_above_the_context_by_its_images_is_refused(server: Served) -> None:
    parts = [part(picture(112, 112, f"rgb({i},0,0)")) for i in range(120)]
    assert server.http.post(CHAT, json=chat(*parts)).status_code == 200
    answer = server.http.post(CHAT, json=chat(*parts, text("word " * 9000)))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
