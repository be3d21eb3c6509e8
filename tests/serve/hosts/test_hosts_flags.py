"""The place of this process among several, by flags and by a cluster's environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from serve.options.hosts import HostOptions, from_environment
from serve.options.serve_flags import parse_serve_flags

ALL = ("--coordinator-address", "a:5", "--num-processes", "4", "--process-id", "3")


def parsed(*flags: str, key: Path | None = None) -> HostOptions | None:
    given = () if key is None else ("--hosts-key-file", str(key))
    return parse_serve_flags(["--demo", *flags, *given])[0].hosts


def test_flags_say_who_leads_and_where(key: Path) -> None:
    assert parsed() is None
    assert parsed(*ALL, key=key) == HostOptions(("a", 5), 6, 4, 3, key)
    of_vllm = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "b", "--plan-port", "9")
    assert parsed(*of_vllm, key=key) == HostOptions(("b", 8476), 9, 2, 0, key)
    assert parsed("--coordinator-address", "[::1]:5", *ALL[2:]) == HostOptions(("::1", 5), 6, 4, 3)
    assert parsed(*ALL[:2], "--num-processes", "1", "--process-id", "0") is None


LOCAL = ("--coordinator-address", "127.0.0.1:5", *ALL[2:])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (ALL[:4], "several hosts need --process-id, too"),
        ((*ALL[:2], "--num-processes", "3", *ALL[4:]), "got 3 of 3"),
        (("--coordinator-address", "a", *ALL[2:]), "must be HOST:PORT, with a port; got a"),
        ((*ALL, "--plan-port", "5"), "must be a port other than the coordinator's; got 5"),
        (("--distributed",), "finds neither LWS_LEADER_ADDRESS"),
        (ALL, "several hosts need --hosts-key-file FILE, the same key on each"),
        ((*ALL, "--hosts-key-file", "/no/such"), "can't read /no/such: No such file"),
        (LOCAL, "need the extra hosts: pip install 'eagle3-jax[hosts]'"),
    ],
)
def test_half_a_group_is_refused(
    flags: tuple[str, ...],
    said: str,
    mistake: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LWS_LEADER_ADDRESS", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    if flags is LOCAL:
        monkeypatch.setattr("serve.options.hosts.find_spec", lambda name: None)
        assert parsed() is None
    assert said in mistake(parsed, *flags)


def test_a_cluster_says_it_and_flags_override_that(
    monkeypatch: pytest.MonkeyPatch, key: Path
) -> None:
    pods = {"LWS_LEADER_ADDRESS": "s-0.s.default", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}
    steps = {"SLURM_STEP_NODELIST": "gpu[007-009,12]", "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}
    for name, value in (steps | {"SLURM_JOB_ID": "4097"}).items():
        monkeypatch.setenv(name, value)
    assert parsed("--distributed", key=key) == HostOptions(("gpu007", 61441), 61442, 4, 2, key)
    monkeypatch.setenv("SLURM_JOB_ID", "4095")
    last = HostOptions(("gpu007", 65535), 65534, 4, 2, key)
    assert parsed("--distributed", key=key) == last, "the last port there is"
    for name, value in pods.items():
        monkeypatch.setenv(name, value)
    assert parsed("--distributed", key=key) == HostOptions(("s-0.s.default", 8476), 8477, 2, 1, key)
    assert parsed("--distributed", *ALL[:2], key=key) == HostOptions(("a", 5), 6, 2, 1, key)
    assert from_environment(pods)["num_processes"] == 2
