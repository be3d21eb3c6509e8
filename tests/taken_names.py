"""A folder whose files have the names of modules that our commands import."""

from pathlib import Path

NAMES = ("serve", "convert", "eagle3_jax", "pallas_kernels", "eagle3_tools", "jax", "numpy")


def folder_with_taken_names(parent: Path) -> Path:
    """Return `parent`/taken, which holds tests/ and a file of each name that raises if imported."""
    folder = parent / "taken"
    (folder / "tests").mkdir(parents=True, exist_ok=True)
    for path in [folder / "tests/__init__.py", *(folder / f"{name}.py" for name in NAMES)]:
        path.write_text("raise AssertionError(f'{__file__} was imported')\n", encoding="utf-8")
    return folder
