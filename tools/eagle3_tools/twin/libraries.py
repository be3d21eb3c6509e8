"""Build the fake ROCm libraries that the installed plugin asks for. Needs g++, nm and readelf.

The plugin's imports decide which symbols a library exports, and under which version. A function
without a source here becomes a stub.
"""

import hashlib
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from eagle3_tools.aot.amd.stubs import run_tool, undefined, version_script

SOURCES = Path(__file__).with_name("fakes")
PLUGIN, RUNTIME = "jax-rocm7-plugin", "jax-rocm7-pjrt"
HIP = "libamdhip64.so.7"
LIBRARIES = {
    r"nccl": "librccl.so.1",
    r"hipblasLt|_ZNK?13hipblaslt": "libhipblaslt.so.1",
    r"hipfft": "libhipfft.so.0",
    r"rocblas_": "librocblas.so.5",
    r"rocprofiler_": "librocprofiler-sdk.so.1",
    r"rsmi_": "librocm_smi64.so.1",
    r"miopen": "libMIOpen.so.1",
    r"hipsolver": "libhipsolver.so.1",
    r"hipsparse": "libhipsparse.so.4",
    r"rocsolver_": "librocsolver.so.0",
    r"hipblas": "libhipblas.so.3",
    r"(__)?hip": HIP,
}
"""Beginning of a symbol's name -> library; the first that fits."""
WRITTEN = {
    HIP: ("hip.cpp", "HIP"),
    "librccl.so.1": ("libraries.cpp", "RCCL"),
    "librocblas.so.5": ("libraries.cpp", "ROCBLAS"),
    "libhipblaslt.so.1": ("libraries.cpp", "HIPBLASLT"),
    "librocm_smi64.so.1": ("libraries.cpp", "ROCM_SMI"),
    "libMIOpen.so.1": ("libraries.cpp", "MIOPEN"),
}
"""Library -> its source and the macro that selects the part of it."""
MAY_FAIL = {
    "rocprofiler_force_configure": 1,  # XLA goes on without a profiler.
}
"""Stub that may be called -> the status that it returns. Any other stub ends the process."""
_NEEDED = re.compile(r"\(NEEDED\).*\[(lib(?:hip|roc|rccl|MIOpen|amdhip).*?)\]")


def libraries(cache: Path) -> Path:
    """Return a folder with the libraries, built at the first call for this plugin and source.

    Raises FileNotFoundError if no plugin is installed, CalledProcessError if g++ fails.
    """
    folder = cache / _key()
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = _imports(_plugin_files())
        # The other libraries are linked with HIP's.
        for library in sorted(wanted, key=lambda name: name != HIP):
            _build(library, wanted[library], folder)
        (folder / "complete").touch()
    return folder


def _key() -> str:
    versions = "-".join(distribution(name).version for name in (PLUGIN, RUNTIME))
    texts = [path.read_bytes() for path in (*sorted(SOURCES.iterdir()), Path(__file__))]
    return f"{versions}-{hashlib.sha256(b''.join(texts)).hexdigest()[:12]}"


def _plugin_files() -> list[Path]:
    found = [
        Path(str(distribution(name).locate_file(file)))
        for name in (PLUGIN, RUNTIME)
        for file in distribution(name).files or ()
        if file.suffix == ".so"
    ]
    if not found:
        raise FileNotFoundError(f"{PLUGIN} and {RUNTIME} have no libraries: reinstall them")
    return found


def _imports(files: Iterable[Path]) -> dict[str, dict[str, set[str]]]:
    """Return library -> version -> symbols; symbols without a version are under ""."""
    wanted: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in files:
        for needed in _NEEDED.findall(run_tool("readelf", "-dW", str(file))):
            _ = wanted[needed]
        for name, version in undefined(file):
            library = next((lib for start, lib in LIBRARIES.items() if re.match(start, name)), None)
            if library:
                wanted[library][version].add(name)
    return {library: dict(versions) for library, versions in wanted.items()}


def _build(library: str, versions: dict[str, set[str]], folder: Path) -> None:
    names = sorted(set().union(*versions.values()))
    source, macro = WRITTEN.get(library, (None, ""))
    text = (SOURCES / source).read_text() if source else ""
    missing = [name for name in names if not re.search(rf"\b{re.escape(name)}\(", text)]
    stubs, script = folder / f"{library}.cpp", folder / f"{library}.map"
    stubs.write_text(_stubs(missing))
    script.write_text(version_script(versions))
    command = ["g++", "-std=c++17", "-O2", "-w", "-fPIC", "-shared", "-pthread"]
    command += [f"-Wl,-soname,{library}", f"-I{SOURCES}", f"-D{macro or 'NOTHING'}"]
    command += [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    command += ["-o", f"{folder / library}", f"{stubs}"]
    command += [f"{SOURCES / source}"] if source else []
    command += [f"-L{folder}", f"-l:{HIP}"] if library != HIP else []
    subprocess.run(command, check=True)


def _stubs(names: Iterable[str]) -> str:
    lines = ['extern "C" long twin_stub(const char *name, long status);']
    for name in names:
        status = MAY_FAIL.get(name, 0)
        body = f'return twin_stub("{name}", {status});'
        export = '__attribute__((visibility("default")))'
        lines.append(f'extern "C" {export} long {name}() {{ {body} }}')
    return "\n".join(lines) + "\n"
