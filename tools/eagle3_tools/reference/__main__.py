"""Write all generated pages."""

from docs.generator import PAGES, ROOT

for name, write in PAGES.items():
    path = ROOT / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(write(ROOT), encoding="utf-8")
    print(f"wrote {name}")
