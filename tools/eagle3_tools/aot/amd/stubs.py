"""Empty shared libraries in place of ROCm's, so that XLA's plugin loads without ROCm.

Their functions report that there is no device. Needs gcc, nm and readelf.
"""

import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

NO_DEVICE = "{return 100;}"
BODIES = {
    "hipGetDeviceCount": "{*(int*)a = 0; return 100;}",
    "hipRuntimeGetVersion": "{*(int*)a = 70200000; return 0;}",
    "hipDriverGetVersion": "{*(int*)a = 70200000; return 0;}",
    "hipGetErrorString": '{return (long)"a stub of ROCm";}',
    "__hipRegisterFatBinary": "{static void *p; return (long)&p;}",
}


def make_stubs(plugin: Path, folder: Path) -> list[Path]:
    """Create the libraries that the plugin needs and the system lacks; return them in load order.

    They are created once in `folder`, which appears atomically. Raises RuntimeError if a tool is
    missing, FileNotFoundError if the plugin is.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            target = Path(made) / "stubs"
            target.mkdir()
            for number, (name, versions) in enumerate(_wanted(plugin).items()):
                _compile(target, name, versions, _unversioned(plugin) if number == 0 else set())
            try:
                target.rename(folder)
            except OSError:
                if not folder.exists():  # Another process made it, or it cannot be made.
                    raise
    return sorted(folder.glob("*.so*"))


def _wanted(plugin: Path) -> dict[str, dict[str, set[str]]]:
    """Return missing library -> symbol version -> its symbols."""
    present = set(re.findall(r"^\s*(\S+) \(", run_tool("/sbin/ldconfig", "-p"), re.M))
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", run_tool("readelf", "-dW", str(plugin)))
    missing = sorted(set(needed) - present - {"ld-linux-x86-64.so.2"})
    library_of = _libraries_of_versions(plugin)
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    for symbol, version in undefined(plugin):
        library = library_of.get(version, "")
        if library in wanted:
            wanted[library][version].add(symbol)
    return wanted


def _libraries_of_versions(plugin: Path) -> dict[str, str]:
    """Return symbol version -> the library that must define it."""
    library, found = "", {}
    for line in run_tool("readelf", "-VW", str(plugin)).splitlines():
        if named := re.search(r"Version: 1\s+File: (\S+)", line):
            library = named[1]
        elif library and (named := re.search(r"Name: (\S+)\s+Flags", line)):
            found[named[1]] = library
    return found


def undefined(plugin: Path) -> list[tuple[str, str]]:
    """Return (symbol, version or "") of all undefined symbols."""
    found = []
    for line in run_tool("nm", "-D", "--undefined-only", str(plugin)).splitlines():
        kind, symbol = line.split()[-2:]
        if kind not in "wv":  # Weak ones may stay undefined.
            name, _, version = symbol.partition("@")
            found.append((name, version.lstrip("@")))
    return found


def _unversioned(plugin: Path) -> set[str]:
    """Return HIP's functions, which have no version: any library may define them."""
    names = {name for name, version in undefined(plugin) if not version}
    return {n for n in names if n.startswith("__hip") or not re.match(r"_?Py|_?__", n)}


def version_script(versions: Mapping[str, set[str]]) -> str:
    """Return the linker's script: one node a version; a symbol with several keeps the named one."""
    named = {version: names for version, names in versions.items() if version and names}
    return "".join(
        f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
        for version, names in sorted(named.items())
    )


def _compile(folder: Path, library: str, versions: dict[str, set[str]], plain: set[str]) -> None:
    names = sorted(plain.union(*versions.values()))
    source, script = folder / "stub.c", folder / "stub.map"
    source.write_text("".join(f"long {n}(void *a){BODIES.get(n, NO_DEVICE)}\n" for n in names))
    script.write_text(version_script(versions))
    linked = [f"-Wl,-soname,{library}", *([f"-Wl,--version-script={script}"] if versions else [])]
    run_tool("gcc", "-w", "-shared", "-fPIC", f"{source}", "-o", f"{folder / library}", *linked)
    source.unlink()
    script.unlink()


def run_tool(*command: str) -> str:
    """Return what a command prints. Raises RuntimeError if it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
        )
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{command[0]} is needed to compile and emulate kernels: install gcc and binutils"
        ) from error
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[:2000]}")
    return done.stdout
