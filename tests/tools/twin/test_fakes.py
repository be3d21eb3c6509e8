"""Parts of the twin that need no ROCm: bundles, versions of symbols, the GPUs that JAX finds."""

import os
import struct
import subprocess
import sys

import pytest

from eagle3_tools.aot.amd.stubs import version_script
from eagle3_tools.twin.__main__ import PATCH
from eagle3_tools.twin.bundles import unbundled


def bundle(**codes: bytes) -> bytes:
    """A bundle as clang writes it: magic, entries, then the code objects."""
    names = [name.encode() for name in codes]
    at = 32 + sum(24 + len(name) for name in names)
    head, body = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names)), b""
    for name, code in zip(names, codes.values(), strict=True):
        head += struct.pack("<QQQ", at + len(body), len(code), len(name)) + name
        body += code
    return head + body


def test_the_code_object_for_the_twins_gpu_is_found_in_a_bundle() -> None:
    assert unbundled(bundle(host=b"x", gfx942=b"old", gfx950=b"new", gfx90a=b"older")) == b"new"
    assert unbundled(b"\x7fELF...") == b"\x7fELF..."
    with pytest.raises(ValueError, match="no code for gfx950"):
        unbundled(bundle(gfx942=b"old"))


def test_a_symbol_is_exported_under_each_version_that_is_imported() -> None:
    imports = {"hip_4.2": {"hipMalloc", "hipFree"}, "hip_6.0": {"hipGraphCreate"}, "": {"rsmi"}}
    assert version_script(imports) == (
        "hip_4.2 { global: hipFree; hipMalloc; };\nhip_6.0 { global: hipGraphCreate; };\n"
    )


@pytest.mark.parametrize(("devices", "expected"), [("3", "3"), (None, "0")])
def test_jax_is_told_of_the_twins_devices_and_only_then(devices: str | None, expected: str) -> None:
    probe = "from jax._src import hardware_utils as h; print(h.num_available_amd_gpus())"
    environment = {**os.environ, "PYTHONPATH": str(PATCH)}
    environment |= {"TWIN_DEVICES": devices} if devices else {}
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == [expected]
