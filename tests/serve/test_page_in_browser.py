"""The page in headless Chromium, over the embedded pair: make page-check."""

import json
import re
from base64 import b64encode
from typing import Any

import httpx
import pytest
from seeing import data_url, picture

CHAT = "**/v1/chat/completions"
WAIT_MS = 60_000


def ask(page: Any, text: str) -> Any:
    """Sends a message by the keyboard and waits for its answer or error."""
    known = page.locator("article").count()
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.locator("article").nth(known + 1).wait_for(timeout=WAIT_MS)
    page.wait_for_selector("#send:visible", timeout=WAIT_MS)
    return page.locator("article").last


def go_to(page: Any, focused: str, key: str) -> None:
    """Presses a key, Tab or Shift+Tab, until what has the focus is the element `e` meant."""
    for _ in range(60):
        page.keyboard.press(key)
        if page.evaluate(f"(e => {focused})(document.activeElement)"):
            return
    raise AssertionError(f"{key} does not come to {focused}")


def shown(answer: Any) -> list[tuple[int, str]]:
    """(origin, text) of the tokens as they are coloured."""
    found = answer.locator(".token").evaluate_all(
        "all => all.map(e => [e.className, e.textContent])"
    )
    drafts = (re.search(r"\bd(\d)", name) for name, _ in found)
    return [(int(d[1]) if d else 0, text) for d, (_, text) in zip(drafts, found, strict=True)]


def streamed(finish_reason: str | None = None, **delta: Any) -> str:
    origins = [{"text": text, "origin": 1} for text in delta.values() if isinstance(text, str)]
    choice = {"index": 0, "delta": delta, "token_origins": origins, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def answering(page: Any, *answers: str) -> list[dict[str, Any]]:
    """The bodies of the requests, of which these are the answers in turn."""
    bodies: list[dict[str, Any]] = []
    left = list(answers)

    def fulfil(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=left.pop(0) + "data: [DONE]\n\n")

    page.route(CHAT, fulfil)
    return bodies


def said(text: str) -> str:
    return streamed(content=text) + streamed("stop")


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rgb or #rrggbb."""
    digits = colour.strip().removeprefix("#")
    pairs = [d * 2 for d in digits] if len(digits) == 3 else re.findall("..", digits)
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (int(p, 16) / 255 for p in pairs)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, other: float) -> float:
    """WCAG's contrast of two luminances, 1 to 21."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


QUESTION = "What is 95 + 61?"
MARKUP = "<img src=x onerror=\"document.title='broken'\"> & <b>bold</b>"


def test_a_chat_streams_and_its_colours_and_counters_are_the_servers(
    page: Any, demo: str, request: pytest.FixtureRequest
) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    body |= {"max_tokens": 256, "token_origins": True}
    expected = httpx.post(f"{demo}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]
    pieces: list[int] = []
    page.expose_function("grown", lambda count: pieces.append(count))
    page.evaluate(
        "new MutationObserver(() => grown(document.querySelectorAll('.token').length))"
        ".observe(document.getElementById('messages'), {childList: true, subtree: true})"
    )
    page.uncheck("#markdown")
    answer = ask(page, QUESTION)
    entries = [(e["origin"], e["text"]) for e in expected["token_origins"] if e["text"]]
    assert shown(answer) == entries and {origin for origin, _ in entries} == {0, 1, 2, 3}
    assert answer.locator(".text").text_content() == expected["message"]["content"]
    assert len(set(pieces)) > 3, "the answer came in one piece"
    shades = {
        answer.locator(s).first.evaluate("e => getComputedStyle(e).backgroundColor")
        for s in (".target", ".d1", ".d2", ".d3")
    }
    assert len(shades) == 4
    assert page.inner_text("#answer-tokens") == str(len(expected["token_origins"]))
    length = float(page.inner_text("#answer-length"))
    assert length == pytest.approx(expected["spec"]["accept_length"], abs=0.25)
    assert float(page.inner_text("#answer-rate")) > 0
    assert page.inner_text("#answer-ttft").endswith(" ms")
    assert page.locator("#answer-positions tr").count() == 3
    page.wait_for_selector("#server-length:text-matches('[1-4][.]')")
    assert page.inner_text("#server-waiting") == "0"
    assert page.inner_text("#model") == "eagle3-demo · context 1024"
    answer.locator(".token.d2").nth(3).hover()
    assert re.match(r"token \d+ · draft 2 of its round, accepted$", page.inner_text("#hint"))
    page.wait_for_selector("#server-running:text-is('0')")
    if file := request.config.getoption("--screenshot"):
        page.screenshot(path=file)


def test_options_reach_the_server_and_turns_are_remembered(page: Any) -> None:
    page.fill("#drafts", "0")
    page.fill("#max-tokens", "9")
    page.fill("#key", "secret")
    page.check("#logprobs")
    ask(page, QUESTION)
    with page.expect_request(CHAT) as sent:
        answer = ask(page, "And 1 + 1?")
    body = sent.value.post_data_json
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert (body["temperature"], body["max_tokens"]) == (0, 9)
    assert body["speculative"] == {"num_tokens": 0}
    assert sent.value.headers["authorization"] == "Bearer secret"
    assert {origin for origin, _ in shown(answer)} == {0}
    assert "cut at max tokens" in answer.inner_text() or len(shown(answer)) < 9
    answer.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert re.match(r"token 2 · chosen by the target · log-prob -?\d", page.inner_text("#hint"))
    page.reload()
    values = [page.input_value(f"#{name}") for name in ("drafts", "max-tokens", "key")]
    assert values == ["0", "9", "secret"] and page.is_checked("#logprobs")
    kept = page.evaluate("JSON.stringify(localStorage) + document.cookie")
    assert "secret" not in kept and QUESTION not in kept


def test_an_answer_can_be_stopped_and_its_request_ends(page: Any, demo: str) -> None:
    page.fill("#temperature", "2")
    page.fill("#max-tokens", "900")
    page.fill("#prompt", QUESTION)
    page.press("#prompt", "Enter")
    page.wait_for_selector("article .token")
    page.keyboard.press("Escape")
    page.wait_for_selector(".note:text('stopped')")
    page.wait_for_selector("#server-running:text-is('0')")
    assert page.locator(".error").count() == 0


def test_reasoning_is_folded_and_markup_stays_text(page: Any) -> None:
    """Also where a mark that nobody sees lies between the tokens, and text without tokens."""
    events = streamed(reasoning=MARKUP) + streamed(content=MARKUP) + "data: [DONE]\n\n"
    events = events.replace('"text": ', '"text": "", "origin": 0}, {"text": ', 1)
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=events))
    answer = ask(page, "x")
    assert answer.locator("details:not([open]) .text").text_content() == MARKUP
    assert answer.locator(":scope > .text").text_content() == MARKUP
    assert answer.locator("img, b").count() == 0 and page.title() == "eagle3-jax"


def test_messages_are_edited_and_answers_retried_by_the_keyboard_alone(page: Any) -> None:
    bodies = answering(page, *map(said, ["one", "two", "three", "four"]))
    ask(page, "first")
    ask(page, "second")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#prompt") == "second" and page.is_visible("#cancel")
    page.keyboard.press("Escape")
    assert page.input_value("#prompt") == "" and page.locator("article").count() == 4
    page.keyboard.press("ArrowUp")
    page.keyboard.type(", but better")
    page.keyboard.press("Enter")
    page.wait_for_selector("article .token:text-is('three')")
    told = [[message["content"] for message in body["messages"]] for body in bodies]
    assert told[2] == ["first", "one", "second, but better"]
    while page.evaluate("document.activeElement.textContent") != "Retry":
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("article .token:text-is('four')")
    assert bodies[3]["messages"] == bodies[2]["messages"]
    assert page.locator("article .text").all_text_contents() == ["one", "four"]
    page.locator("article.user").first.get_by_text("Edit").click()
    assert page.input_value("#prompt") == "first"


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_a_tools_call_is_shown_and_its_result_goes_back_by_the_keyboard_alone(page: Any) -> None:
    called: dict[str, Any] = {"index": 0, "id": "functions.weather:0", "type": "function"}
    pieces = [called | {"function": {"name": "weather"}}]
    pieces += [{"index": 0, "function": {"arguments": part}} for part in ('{"city": ', '"Oslo"}')]
    call = streamed(reasoning="I must look.") + streamed(tool_calls=pieces[:1])
    call += streamed(tool_calls=pieces[1:2]) + streamed("tool_calls", tool_calls=pieces[2:])
    bodies = answering(page, call, said("It **rains**."))
    page.fill("#system", "Be brief.")
    page.fill("#tools", "no JSON")
    page.fill("#prompt", "x")
    page.press("#prompt", "Enter")
    assert "The tools can't be read" in page.locator(".error").inner_text()
    page.fill("#tools", json.dumps(TOOLS))
    go_to(page, "e.id == 'prompt'", "Shift+Tab")
    answer = ask(page, "How is Oslo?")
    assert answer.locator(".call summary").inner_text() == "calls weather"
    assert answer.locator(".call .text").text_content() == '{"city": "Oslo"}'
    go_to(page, "e.className == 'result'", "Shift+Tab")
    page.keyboard.type("rain")
    go_to(page, "e.textContent == 'Send results'", "Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("article strong")
    page.wait_for_selector("#send:visible")
    assert bodies[0]["tools"] == TOOLS
    roles = ["system", "user", "assistant", "tool"]
    assert [message["role"] for message in bodies[1]["messages"]] == roles
    _, _, turn, result = bodies[1]["messages"]
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert turn["tool_calls"][0]["function"] == function
    assert turn["reasoning_content"] == "I must look."
    assert result == {"role": "tool", "tool_call_id": "functions.weather:0", "content": "rain"}
    go_to(page, "e.id == 'markdown'", "Tab")
    page.keyboard.press("Space")
    assert page.locator("article").last.locator(".text").text_content() == "It **rains**."


def test_markdown_is_shown_as_it_grows_with_its_tokens_colours_or_not_at_all(page: Any) -> None:
    pieces = ["## He", "ad\n\n- **bo", "ld** `x`\n\n```py\nprint(", "1)\n```\n"]
    pieces += ["[l](https://a.b/c) ", "[bad](javascript:alert(1))"]
    answering(page, "".join(streamed(content=piece) for piece in pieces) + streamed("stop"))
    answer = ask(page, "x")
    assert answer.locator("h4").text_content() == "Head"
    assert answer.locator("li strong").text_content() == "bold"
    assert answer.locator(".code code").text_content() == "print(1)"
    assert answer.locator(".code figcaption").inner_text().startswith("py")
    links = answer.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel])")
    assert links == [["https://a.b/c", "noopener noreferrer"]]
    assert answer.locator("strong .token.d1").all_text_contents() == ["bo", "ld"]
    page.uncheck("#markdown")
    assert answer.locator(".text").text_content() == "".join(pieces)


ERRORS: dict[int, tuple[dict[str, str], str]] = {
    401: ({}, " Put the server's key into “API key”."),
    429: ({"Retry-After": "3"}, " Too many requests are waiting. Try again in 3 s."),
    400: ({}, ""),
}


@pytest.mark.parametrize("status", ERRORS)
def test_errors_are_sentences(page: Any, status: int) -> None:
    body, (headers, advice) = json.dumps({"error": {"message": "the reason"}}), ERRORS[status]
    page.route(CHAT, lambda route: route.fulfill(status=status, headers=headers, body=body))
    error = ask(page, "x")
    assert error.text_content() == f"{status}: the reason.{advice}"
    assert error.get_attribute("role") == "alert"
    assert page.input_value("#prompt") == "x", "the message is lost"


def test_a_stream_that_breaks_and_a_server_that_is_gone_are_told(page: Any) -> None:
    half = streamed(content="half")
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=half))
    assert ask(page, "x").text_content() == "The connection ended before the answer did."
    page.route("**/*", lambda route: route.abort())
    page.wait_for_selector("#state[data-state=down]")
    assert "can't be reached" in ask(page, "y").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_reads_well_on_a_phone_in_light_and_dark(chromium: Any, demo: str, scheme: str) -> None:
    """Nothing is wider than the screen, and text has WCAG's contrast of 4.5 on every shade."""
    page = chromium.new_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page.goto(demo)
    page.wait_for_selector("#legend .target")
    wide = "| a | b |\n|---|---|\n" + f"| {'wide ' * 40}| {'x' * 90} |\n\n```\n{'y' * 200}\n```\n"
    answering(page, said(wide))
    ask(page, "z" * 100)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    colours: list[str] = page.evaluate(
        "['--ink', '--soft', '--paper', '--panel', ...[1, 2, 3, 4, 5, 6, 7, 8].map(i => `--d${i}`)]"
        ".map(n => getComputedStyle(document.documentElement).getPropertyValue(n))"
    )
    ink, soft, paper, panel, *shades = map(luminance, colours)
    assert all(contrast(ink, shade) >= 4.5 for shade in (paper, panel, *shades))
    assert contrast(soft, panel) >= 4.5 and contrast(soft, paper) >= 4.5
    page.close()


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
    page.evaluate(GIVE, [[how, kind], b64encode(data).decode(), target])


@pytest.fixture
def sighted(page: Any) -> Any:
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
