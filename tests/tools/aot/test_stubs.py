"""Empty libraries against a small plugin that is linked here and then loses what it needs."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from eagle3_tools.aot.amd.stubs import make_stubs

TOOLS = ("gcc", "nm", "readelf")
needs_gcc = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)), reason="gcc and binutils are not installed"
)


def gcc(*arguments: object) -> None:
    subprocess.run(["gcc", *map(str, arguments)], check=True)


BLAS = """
int eagleBlasCreate(void) {return 0;}
int eagleBlasOld(void) {return 0;}
"""
VERSIONS = """
BLAS_2 { global: eagleBlasCreate; };
BLAS_1 { eagleBlasOld; };
"""
HIP = """
int hipGetDeviceCount(int *n) {*n = 8; return 0;}
int hipMalloc(void) {return 0;}
"""
PLUGIN = """
int eagleBlasCreate(void), eagleBlasOld(void), hipGetDeviceCount(int *), hipMalloc(void);
int devices(void) {int n = 5; int status = hipGetDeviceCount(&n); return 1000 * n + status;}
int use(void) {return eagleBlasCreate() + eagleBlasOld() + hipMalloc();}
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Needs one library with symbol versions and one without; both are gone."""
    rocm = tmp_path / "rocm"
    rocm.mkdir()
    sources = {"blas.c": BLAS, "blas.map": VERSIONS, "hip.c": HIP, "plugin.c": PLUGIN}
    for name, text in sources.items():
        (rocm / name).write_text(text)
    shared = ("-shared", "-fPIC")
    blas, hip = (rocm / f"libeagletest{name}.so.7" for name in ("blas", "hip"))
    versions = f"-Wl,--version-script={rocm / 'blas.map'}"
    gcc(*shared, rocm / "blas.c", "-o", blas, f"-Wl,-soname,{blas.name}", versions)
    gcc(*shared, rocm / "hip.c", "-o", hip, f"-Wl,-soname,{hip.name}")
    gcc(*shared, rocm / "plugin.c", "-o", tmp_path / "plugin.so", blas, hip)
    shutil.rmtree(rocm)
    return tmp_path / "plugin.so"


@needs_gcc
def test_a_plugin_without_its_libraries_loads_and_hears_of_no_device(plugin: Path, tmp_path: Path):
    with pytest.raises(OSError, match="libeagletest"):
        ctypes.CDLL(str(plugin))
    stubs = make_stubs(plugin, tmp_path / "stubs")
    assert [path.name for path in stubs] == ["libeagletestblas.so.7", "libeagletesthip.so.7"]
    for path in stubs:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(str(plugin))
    assert loaded.devices() == 100  # No devices, and hipErrorNoDevice.
    assert loaded.use() == 300


@needs_gcc
def test_libraries_are_made_once(plugin: Path, tmp_path: Path):
    first = make_stubs(plugin, tmp_path / "stubs")
    made = [path.stat().st_mtime_ns for path in first]
    again = make_stubs(plugin, tmp_path / "stubs")
    assert [path.stat().st_mtime_ns for path in again] == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plugin.so", "stubs"]


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"readelf is needed .* install gcc and binutils"):
        make_stubs(tmp_path / "plugin.so", tmp_path / "stubs")
