"""Record when each `prove-*` target last passed, and list what has changed since.

python tests/proof_record.py passed prove-tiers   # a target's last line: it has just passed
python tests/proof_record.py status               # `make prove-status`
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORD = Path("docs/benchmarks/proofs.json")
ENGINE = ("eagle3_jax", "tests/eagle3_jax", "tests/proofs", "tests/worlds")
KERNELS = (
    *("pallas_kernels", "tests/pallas_kernels"),
    *("tools/eagle3_tools/amdgpu", "tests/tools/amdgpu", "tests/tools/aot"),
)
COVERS: dict[str, tuple[str, ...]] = {
    "prove": (*ENGINE, "tests/equivalence"),
    "prove-images": ("eagle3_jax", "convert/images.py", "serve/images", "tests/proofs"),
    "prove-long-contexts": ("eagle3_jax", "tests/equivalence"),
    "prove-contexts": ENGINE,
    "prove-sharding": ("eagle3_jax", "tests/eagle3_jax/sharded", "serve/options"),
    "prove-kernels": ("eagle3_jax", *KERNELS),
    "prove-checkpoints": ("convert", "eagle3_jax/config", "tests/convert", "tests/equivalence"),
    "prove-tiers": ("eagle3_jax/engine/kv", "serve/kv_transfer", "serve/kv_events"),
    "prove-guide": ("docs/guide", "serve", "convert"),
    "dist-check": ("pyproject.toml", "tools/pyproject.toml", "serve", "convert"),
    "prove-server": ("serve", "tests/serve"),
    "prove-training": ("eagle3_jax/training", "serve/train", "tests/eagle3_jax/training"),
    "prove-hosts": ("serve/hosts", "docs/deploy", "tests/replicas"),
    "prove-deploy": ("docs/deploy", ".dockerignore", "pyproject.toml", "tests/serve/deploy"),
    "prove-dashboards": ("docs/deploy", "serve/telemetry", "tests/serve/deploy"),
    "rocm-check": ("eagle3_jax", "tools/eagle3_tools/plan", *KERNELS),
    "rocm-emulate": KERNELS,
    "rocm-twin": ("eagle3_jax", "serve", "tools/eagle3_tools/twin", *KERNELS),
    "cuda-check": KERNELS,
    "clients": ("serve", "tests/clients"),
}
"""Paths whose changes make a record outdated."""


def passed(target: str) -> None:
    """Record the target for this commit; raise SystemExit if files it covers are uncommitted."""
    if changed := _git("status", "--porcelain", "--", *COVERS[target]):
        raise SystemExit(f"{target} passed, but isn't recorded: commit first\n{changed}")
    entry = {"commit": _git("rev-parse", "HEAD"), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    entries = dict(sorted({**_read(), target: entry}.items()))
    RECORD.write_text(json.dumps(entries, indent=1) + "\n")


def status() -> None:
    """Print each target's last run, and how many files that it covers have changed since."""
    entries = _read()
    for target, paths in COVERS.items():
        if target not in entries:
            print(f"{target:20} never recorded")
            continue
        commit, date = entries[target]["commit"], entries[target]["date"]
        changed = _git("diff", "--name-only", commit, "HEAD", "--", *paths).splitlines()
        state = f"older than {len(changed)} files" if changed else "current"
        print(f"{target:20} {date} {commit[:8]} {state}")


def _read() -> dict[str, Any]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["passed", target] if target in COVERS:
            passed(target)
        case ["status"]:
            status()
        case _:
            raise SystemExit(f"{__doc__}\nTargets: {', '.join(COVERS)}")
