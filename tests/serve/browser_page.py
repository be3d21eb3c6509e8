"""What tests of the page do with a browser: ask, stand in for the server, look at tokens."""

import json
import re
from typing import Any

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
    """An event of a chat."""
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
