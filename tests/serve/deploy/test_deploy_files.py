"""Programs that will read the files of docs/deploy accept them; needs kubectl and systemd."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_tools.reference import ROOT

DEPLOY = ROOT / "docs/deploy"
pytestmark = pytest.mark.long
OTHER_VALUES = {
    "TENSOR_PARALLEL_SIZE": "4",
    "TERMINATION_GRACE": "310",
    "MODELS_STORAGE": "250Gi",
    "PROGRAMS_STORAGE": "7Gi",
}


def run(*command: str | Path, **options: Any) -> str:
    """Run a command that must succeed, and return all that it prints."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def test_kustomize_puts_the_values_in_their_places_and_kubernetes_knows_every_field(
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    values = (folder / "values.env").read_text()
    for name, value in OTHER_VALUES.items():
        values, found = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", values)
        assert found == 1, name
    (folder / "values.env").write_text(values)
    built = tmp_path / "built.yaml"
    built.write_text(run("kubectl", "kustomize", folder))
    of_kind = {
        f"{one['kind']}{one['metadata']['name']}": one
        for one in yaml.safe_load_all(built.read_text())
    }
    pod = of_kind["Deploymenteagle3-jax"]["spec"]["template"]["spec"]
    claims = {n: one for n, one in of_kind.items() if n.startswith("PersistentVolumeClaim")}
    placed = {
        "TENSOR_PARALLEL_SIZE": f"{pod['containers'][0]['resources']['limits']['amd.com/gpu']}",
        "TERMINATION_GRACE": f"{pod['terminationGracePeriodSeconds']}",
    } | {
        f"{name.rpartition('-')[2].upper()}_STORAGE": one["spec"]["resources"]["requests"][
            "storage"
        ]
        for name, one in claims.items()
    }
    assert placed == OTHER_VALUES
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"][:2]} == {
        one["metadata"]["name"] for one in claims.values()
    }
    for file in (built, DEPLOY / "leader_worker_set.yaml"):
        validator = Path(sys.executable).with_name("kubernetes-validate")
        assert "passed" in run(validator, "--strict", file)


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "eagle3-serve.service"
    command = re.compile(r"(?<=^ExecStart=)\S+", re.MULTILINE)
    text, found = command.subn(sys.executable, (DEPLOY / unit.name).read_text())
    unit.write_text(text)
    assert found == 1 and run("systemd-analyze", "verify", unit) == ""


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return the keyword and the rest of each instruction."""
    lines = dockerfile.read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line and line[0] != "#"]  # type: ignore[misc]


def allowed(patterns: Sequence[str]) -> list[str]:
    """Return the paths of a .dockerignore that excludes everything but these."""
    assert patterns[0] == "*"
    return [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.rocm"])
def test_an_image_can_be_built_from_the_files_that_docker_gets(name: str, tmp_path: Path) -> None:
    """Run each RUN where COPY has put the files that .dockerignore leaves; pip resolves and builds,
    but installs nothing, and accounts are not made."""
    steps = instructions(DEPLOY / name)
    assert ("COPY", ". .") in steps
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    image, programs = tmp_path / "app", tmp_path / "bin"
    for path in allowed([rule for rule in rules if rule and rule[0] != "#"]):
        tracked = run("git", "ls-files", path, cwd=ROOT).splitlines()
        assert tracked, f".dockerignore names {path}, which is not in the repository"
        for file in tracked:
            (image / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, image / file)
    run(sys.executable, "-m", "venv", tmp_path / "python")
    programs.mkdir()
    (programs / "useradd").symlink_to(shutil.which("true") or "")
    path = f"{programs}:{tmp_path / 'python/bin'}:{os.environ['PATH']}"
    for keyword, rest in steps:
        if keyword == "RUN":
            rest = rest.replace("pip install", "pip install --dry-run --no-deps")
            said = run("sh", "-c", rest, cwd=image, env=os.environ | {"PATH": path})
            assert "Would install" in said and "does not provide the extra" not in said, said
