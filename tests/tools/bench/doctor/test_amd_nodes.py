"""A node with a fault of a public report gets one line, and none without it."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_tools.bench.doctor import node
from eagle3_tools.bench.doctor.amd_nodes import KNOWN_FAULTS, known_faults
from eagle3_tools.bench.doctor.node import Device, Look, Node

GOOD = {"rocm": "7.2.1-81", "mec": "0x000000b1", "balancing": "0"}


def looked(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    arch: str,
    variables: dict[str, str],
    **files: str,
) -> Node:
    """The facts of a node whose /sys, /proc and version files are these, with two cards."""
    facts = {**GOOD, **files}
    written = {"opt/rocm/.info/version": facts["rocm"]}
    written["proc/sys/kernel/numa_balancing"] = facts["balancing"]
    for card, mec in (("card0", "0x000000b9"), ("card1", facts["mec"])):
        folder = f"sys/class/drm/{card}/device"
        written |= {f"{folder}/mem_info_vram_{name}": "1048576" for name in ("total", "used")}
        written[f"{folder}/fw_version/mec_fw_version"] = mec
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    monkeypatch.setattr(node, "ROOT", root)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for name in node.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return replace(Look()(), platform="gpu", devices=(Device(0, "MI", arch, None),))


@pytest.mark.parametrize(
    ("subject", "has", "has_not", "said"),
    [
        ("ROCm", {"rocm": "7.2.0-43"}, {}, "7.2.0, below 7.2.1"),
        ("ROCm", {"rocm": "7.1"}, {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}, "7.1, below"),
        ("firmware", {"mec": "0x000000b0"}, {"HSA_NO_SCRATCH_RECLAIM": "1"}, "MEC 176, below 177"),
        ("NUMA balancing", {"balancing": "1"}, {}, "on; the kernel moves pages"),
        ("hipBLASLt", {"arch": "gfx942"}, {}, "ROCm 7.2.1 on gfx942"),
        ("RCCL", {"rocm": "7.14.0"}, {"NCCL_MAX_NCHANNELS": "64"}, "ROCm 7.14.0 on gfx950"),
    ],
)
def test_each_known_fault_is_one_line_that_says_what_to_do(
    subject: str,
    has: dict[str, str],
    has_not: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lines(variables: dict[str, str], *, arch: str = "gfx950", **files: str) -> list[str]:
        return list(map(str, known_faults(looked(tmp_path, monkeypatch, arch, variables, **files))))

    (line,) = lines({}, **has)
    assert line.startswith(f"note    known fault {subject}") and said in line
    assert ": " in line.partition("; ")[2], "the reason, and what to do"
    assert not lines(has_not, **(has if has_not else {}))


def test_nodes_without_amd_gpus_and_unknown_versions_have_no_such_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = looked(tmp_path, monkeypatch, "9.0", {}, rocm="7.0", mec="0x1", balancing="1")
    unknown = looked(tmp_path, monkeypatch, "gfx942", {}, rocm="", mec="")
    for facts in (other, unknown):
        assert not list(known_faults(facts))
    assert {card.mec for card in other.cards} == {1, 0xB9}
    assert len({fault.subject for fault in KNOWN_FAULTS}) == len(KNOWN_FAULTS)
