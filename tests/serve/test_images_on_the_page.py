"""Images on the page, in headless Chromium beside a script's answers: `make page-check`."""

import json
from base64 import b64encode
from typing import Any

import pytest
from browser_page import answering, ask, said
from seeing import data_url, picture

RED, BLUE = picture(40, 40, "red"), picture(40, 40, "blue", "JPEG")
GIVE = """([kind, data, target]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], "a", { type: kind[1] }));
  const [name, field] = kind[0] === "paste" ? ["paste", "clipboardData"] : ["drop", "dataTransfer"];
  const event = new Event(name, { bubbles: true, cancelable: true });
  event[field] = files;
  document.querySelector(target).dispatchEvent(event);
}"""


def give(page: Any, how: str, data: bytes, kind: str, target: str) -> None:
    """Pastes or drops a file."""
    page.evaluate(GIVE, [[how, kind], b64encode(data).decode(), target])


@pytest.fixture
def sighted(page: Any) -> Any:
    """The page of a server that says it takes images."""
    card = {"id": "fake", "max_model_len": 99, "input_modalities": ["text", "image"]}
    page.route("**/v1/models", lambda route: route.fulfill(body=json.dumps({"data": [card]})))
    page.reload()
    page.wait_for_selector("#attach:visible")
    return page


def parts(*files: str, text: str = "") -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in files]
    return [*images, *([{"type": "text", "text": text}] if text else [])]


def test_a_server_that_takes_no_images_is_offered_none(page: Any) -> None:
    assert page.is_hidden("#attach") and page.is_hidden("#waiting")
    give(page, "paste", RED, "image/png", "#prompt")
    assert page.locator("#waiting img").count() == 0


def test_images_are_chosen_pasted_and_dropped_and_sent_with_the_text(sighted: Any) -> None:
    page, red, blue = sighted, data_url(RED), data_url(BLUE, "image/jpeg")
    bodies = answering(page, said("Red."), said("Both."))
    page.focus("#prompt")
    page.keyboard.press("Tab")
    with page.expect_file_chooser() as chosen:
        page.keyboard.press("Enter")
    chosen.value.set_files([{"name": "a.png", "mimeType": "image/png", "buffer": RED}])
    page.wait_for_selector("#waiting img")
    ask(page, "What colour?")
    assert bodies[0]["messages"][-1]["content"] == parts(red, text="What colour?")
    assert page.locator(".user img").get_attribute("src") == red
    assert page.locator(".user img").evaluate("e => e.naturalWidth") == 40
    assert page.is_hidden("#waiting")
    give(page, "paste", BLUE, "image/jpeg", "#prompt")
    page.wait_for_selector("#waiting img")
    give(page, "drop", RED, "image/png", "#messages")
    page.locator("#waiting img").nth(1).wait_for()
    give(page, "drop", RED, "image/png", "#messages")
    page.locator("#waiting img").nth(2).wait_for()
    page.get_by_label("Remove image 3").press("Enter")
    assert page.locator("#waiting img").count() == 2
    page.press("#prompt", "Enter")
    page.locator("article.assistant").nth(1).wait_for()
    said_before, _, now = bodies[1]["messages"]
    assert said_before["content"] == parts(red, text="What colour?")
    assert now["content"] == parts(blue, red)


def test_an_edited_message_has_its_images_and_others_are_refused(sighted: Any) -> None:
    page = sighted
    bodies = answering(page, said("Red."), said("Red again."))
    give(page, "paste", RED, "image/png", "#prompt")
    page.wait_for_selector("#waiting img")
    ask(page, "What colour?")
    page.locator(".user").get_by_text("Edit").click()
    assert page.locator("#waiting img").count() == 1
    page.fill("#prompt", "Which one?")
    page.press("#prompt", "Enter")
    page.locator("article.assistant").get_by_text("again").wait_for()
    assert bodies[1]["messages"][-1]["content"] == parts(data_url(RED), text="Which one?")
    give(page, "paste", b"<svg/>", "image/svg+xml", "#prompt")
    assert "PNG, JPEG" in page.locator(".error").inner_text()
    assert page.locator("#waiting img").count() == 0
