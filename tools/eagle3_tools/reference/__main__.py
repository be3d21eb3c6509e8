"""Write all generated pages."""

from eagle3_tools.reference import PAGES, ROOT


def main() -> None:
    """Write each page of `PAGES` and print its name."""
    for name, write in PAGES.items():
        path = ROOT / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(write(ROOT), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
