"""Stores, finished or not, that are damaged or forged: one line, and nothing read outside."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from converting import DRAFT, Capture, contents, copied, interrupted, refused
from edited import put
from hostile import nested, opens_or_says_why
from small_stores import leave_unfinished, source_directory, write_small

from convert.conversion import cli
from convert.load import prepare_draft
from convert.store.reader import open_store
from eagle3_jax.models.target import Target

HOSTILE = (
    *(None, True, -1, 1.5, 10**400, float("nan"), "", "..", "/etc", "a\x00", "x" * 10_000),
    *([], {}, ["x"], {"../x": 1}, [2**70] * 3, nested(500)),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound one of several items, not to be changed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "MIB", 2**14)
        made = tmp_path_factory.mktemp("store") / "made"
        assert cli.main([str(DRAFT), str(made), "--item-mib", "1"]) == 0
    return made


@pytest.fixture
def made(store: Path, tmp_path: Path) -> Path:
    """A copy of it to tamper with."""
    return Path(shutil.copytree(store, tmp_path / "made"))


def verified(made: Path, capsys: Capture) -> int:
    """Status of --verify, which says what it finds in one line."""
    capsys.readouterr()
    status = cli.main(["--verify", str(made)])
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if not line.startswith("verifying: ")]
    assert len(errors) == (status != 0), errors
    return status


def test_every_deleted_and_every_truncated_file_is_noticed(tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made"
    assert cli.main([str(DRAFT), str(made)]) == 0
    assert verified(made, capsys) == 0
    files = contents(made)
    assert {Path(name).parts[0] for name in files} == {"items", "manifest.json", "config.json"}
    for name, content in files.items():
        (made / name).unlink()
        assert verified(made, capsys), name
        for length in {0, len(content) // 2, len(content) - 1} - {len(content), -1}:
            (made / name).write_bytes(content[:length])
            assert verified(made, capsys), (name, length)
        (made / name).write_bytes(content)
    assert verified(made, capsys) == 0


def edited(fields: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Places in a JSON value, of a list the last entry alone, and the values to put there."""
    keys = list(fields) if isinstance(fields, dict) else range(len(fields))[-1:]
    for key in keys:
        if key != "nonfinite":  # which only the weights themselves could contradict
            changed = [value for value in HOSTILE if value != fields[key]]
            yield from (((*prefix, key), value) for value in changed)
        if isinstance(fields[key], dict | list) and len(prefix) < 2:
            yield from edited(fields[key], (*prefix, key))


def test_no_field_of_a_manifest_does_more_than_cost_one_line(
    made: Path, capsys: Capture, target: Target
) -> None:
    file = made / "manifest.json"
    fields = json.loads(file.read_text())
    fields["tensors"] = dict(list(fields["tensors"].items())[:2])
    fields["files"] = dict(list(fields["files"].items())[:2])
    governed = {"format", "version", "checksum", "totals", "parameters", "files", "side_files"}
    for place, value in edited(fields):
        file.write_text(json.dumps(put(fields, place, value)))
        if opens_or_says_why(made, open_store):
            continue
        assert place[0] not in governed or verified(made, capsys), (place, value)
        opens_or_says_why(made, lambda path: prepare_draft(path, target))


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw.replace(b'"totals": {', b'"totals": {}, "totals": {'),
        lambda raw: raw.replace(b'"totals"', b'"sums"'),
        lambda raw: raw.replace(b'"arch"', b'"format": "other", "arch"'),
        lambda raw: b"[]",
    ],
    ids=["truncated", "a name twice", "no totals", "another format as well", "a list"],
)
def test_a_damaged_manifest_is_one_line(made: Path, capsys: Capture, damage: Any) -> None:
    file = made / "manifest.json"
    file.write_bytes(damage(file.read_bytes()))
    assert "manifest.json" in refused(capsys, "--verify", made)


def test_a_parameter_listed_twice_is_refused(made: Path, capsys: Capture) -> None:
    file = made / "manifest.json"
    fields = json.loads(file.read_text())
    fields["parameters"].append(fields["parameters"][-1])
    file.write_text(json.dumps(fields))
    assert "listed twice" in refused(capsys, "--verify", made)


@pytest.mark.parametrize("outside", ["/", "../../", "layers/../../../"])
def test_no_item_lies_outside_of_the_store(made: Path, capsys: Capture, outside: str) -> None:
    """Not even where there is one that could be read."""
    file = made / "manifest.json"
    fields = json.loads(file.read_text())
    item = fields["parameters"][0]["item"]
    shutil.move(made / "items" / item, made.parent / item)
    prefix = f"{made.parent}/" if outside == "/" else outside
    text = file.read_text().replace(f'"item": "{item}"', f'"item": "{prefix}{item}"')
    assert text != file.read_text()
    file.write_text(text)
    assert "must name one entry of a directory" in refused(capsys, "--verify", made)


@pytest.mark.parametrize("level", ["items", "items/*", "items/*/*"])
def test_links_in_the_items_are_not_followed(
    made: Path, capsys: Capture, target: Target, level: str
) -> None:
    found = sorted(made.glob(level))[0]
    shutil.move(found, made.parent / "elsewhere")
    found.symlink_to(made.parent / "elsewhere")
    assert f"{found} is a link" in refused(capsys, "--verify", made)
    assert "is a link" in opens_or_says_why(made, lambda path: prepare_draft(path, target))


def test_a_store_that_lost_a_file_is_not_loaded(made: Path, target: Target) -> None:
    lost = max((made / "items").rglob("d/*"), key=lambda path: path.stat().st_size)
    lost.write_bytes(lost.read_bytes()[:-1])
    said = opens_or_says_why(made, lambda path: prepare_draft(path, target))
    assert f"{lost.relative_to(made)}: {lost.stat().st_size} bytes, not " in said


def test_no_field_of_a_journal_does_more_than_cost_one_line(tmp_path: Path) -> None:
    source_directory(tmp_path)
    partial = leave_unfinished(tmp_path / "made")
    journal = partial / "unfinished.json"
    fields = json.loads(journal.read_bytes())
    del fields["side_files"]  # They are copied at the end, whatever is listed.
    before = contents(partial / "items")
    for place, value in edited(fields):
        journal.write_text(json.dumps(put(fields, place, value)))
        said = opens_or_says_why(partial, lambda _: write_small(tmp_path / "made"))
        assert said and "\n" not in said, (place, value)
    assert contents(partial / "items") == before


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, list[str]]:
    """Source, DST and the files of a run with two finished items."""
    source, made = copied(tmp_path), tmp_path / "made"
    partial = interrupted(monkeypatch, source, made)
    journal = json.loads((partial / "unfinished.json").read_text())
    assert len({parameter["item"] for parameter in journal["parameters"]}) == 2
    return source, made, list(journal["files"])


def test_an_item_that_lost_a_file_is_not_taken_for_finished(
    begun: tuple[Path, Path, list[str]], capsys: Capture
) -> None:
    source, made, files = begun
    for name in files:
        file = made.with_name("made.partial") / name
        content = file.read_bytes()
        file.unlink()
        assert name in refused(capsys, source, made, "--item-mib", "1")
        file.write_bytes(content)
    assert cli.main([str(source), str(made), "--item-mib", "1"]) == 0
    assert verified(made, capsys) == 0


@pytest.mark.parametrize("damage", [lambda raw: raw[:40], lambda raw: b"{" * 10_000, lambda _: b""])
def test_a_damaged_journal_is_one_line(
    begun: tuple[Path, Path, list[str]], capsys: Capture, damage: Any
) -> None:
    source, made, _ = begun
    journal = made.with_name("made.partial") / "unfinished.json"
    journal.write_bytes(damage(journal.read_bytes()))
    assert "unfinished.json is damaged" in refused(capsys, source, made, "--item-mib", "1")
