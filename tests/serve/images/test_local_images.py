"""Images that requests name by file:// URLs."""

from pathlib import Path
from typing import Any

from seeing import chat, part, picture, reader, seeing

from serve.options.operations import Operations

PICTURE = picture()


def test_files_are_read_from_the_open_directory_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "open", tmp_path / "secret.png"
    inside.mkdir()
    for path in (inside / "a b.png", outside):
        path.write_bytes(PICTURE)
    (inside / "link.png").symlink_to(outside)
    (inside / "large.png").write_bytes(b"x" * 5000)
    options: dict[str, Any] = {"local_path": inside.resolve(), "max_bytes": 4000}
    with reader(**options) as images, seeing(images) as server:

        def ask(url: str) -> Any:
            return server.http.post("/v1/chat/completions", json=chat(part(url)))

        assert ask((inside / "a b.png").as_uri()).status_code == 200
        assert "larger than 4000" in ask((inside / "large.png").as_uri()).text
        told = set()
        for url in (
            outside.as_uri(),
            (inside / "link.png").as_uri(),
            f"file://{inside}/../secret.png",
            f"file://{inside}/%2e%2e/secret.png",
            f"file://elsewhere{inside}/a%20b.png",
            inside.as_uri(),
            "file:///etc/passwd",
            f"file://{inside}/missing.png",
            f"file://{inside}/%00",
            "file:",
        ):
            answer = ask(url)
            assert answer.status_code == 400, url
            told.add(answer.json()["error"]["message"])
        # Nor is told what is there.
        assert len(told) == 1 and "no file that may be read" in told.pop()


def test_an_image_counts_as_often_as_a_response_would_store_it(tmp_path: Path) -> None:
    """It is loaded once, and a request that stores nothing may name it as often as it likes."""
    path, size = tmp_path / "a.png", 400_000
    path.write_bytes(PICTURE + b"x" * (size - len(PICTURE)))
    image = {"type": "input_image", "image_url": path.as_uri()}
    limited = Operations(max_body_bytes=2**20)
    with (
        reader(local_path=tmp_path.resolve()) as images,
        seeing(images, operations=limited) as server,
    ):

        def ask(times: int, **fields: Any) -> Any:
            items = [{"role": "user", "content": [image] * times}]
            return server.http.post("/v1/responses", json={"input": items, **fields})

        assert ask(1).status_code == ask(24, store=False).status_code == 200
        refused = ask(24).json()["error"]
        assert "once stored" in refused["message"] and refused["param"] == "input"
