"""Numbers of devices and processes: flags of other engines, refusals, and places of pairs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from convert.abstract_model import AbstractModel
from convert.files import safetensors_files
from convert.published import forms, read_parameter
from eagle3_jax.engine import EngineConfig
from eagle3_jax.mesh import mesh_of
from eagle3_tools.bench.cli import parse_bench_flags
from eagle3_tools.plan.cli import main as plan_main
from eagle3_tools.plan.options import build_parser as plan_parser
from serve.demo import demo_draft_dir, demo_target_dir
from serve.generate.flags import parse_generate_flags
from serve.options.checkpoint import DEFAULTS
from serve.options.parallel import ONE_DEVICE, ParallelOptions, notify_of_interleaving
from serve.options.ray import RayOptions
from serve.options.serve_flags import parse_serve_flags
from serve.pair.loading import load_pair


def serve(*argv: str) -> ParallelOptions:
    return parse_serve_flags(["--demo", *argv])[0].parallel


def generate(*argv: str) -> ParallelOptions:
    return parse_generate_flags(["--demo", "--prompt", "a", *argv]).parallel


def bench(*argv: str) -> Any:
    return parse_bench_flags(["accept", "--demo", *argv]).parallel


def plan(*argv: str) -> Any:
    return plan_parser().parse_args(["--model", "m", *argv])


def drafts(size: int) -> list[str]:
    return ["--speculative-config", json.dumps({"draft_tensor_parallel_size": size})]


@pytest.mark.parametrize("parse", [serve, generate])
def test_names_of_both_engines_mean_the_same(parse: Any) -> None:
    assert parse() == ONE_DEVICE == ParallelOptions(1, False, 1)
    for name in ("--tensor-parallel-size", "-tp", "--tp", "--tp-size"):
        assert parse(name, "8") == ParallelOptions(8, False, 8)
    by_expert = ParallelOptions(8, True, 8)
    assert parse("--tp", "8", "--enable-expert-parallel") == by_expert
    assert parse("--tp", "8", "--ep-size", "8") == by_expert
    assert parse("--tp", "8", "--ep-size", "1", "--dp", "1") == ParallelOptions(8, False, 8)
    for name in ("--data-parallel-size", "-dp", "--dp-size"):
        replicas = parse(name, "2", "--tp", "4", "--enable-expert-parallel")
        assert replicas == ParallelOptions(4, True, 4, None, 2) and replicas.devices == 8


NAMES = ("--dcp-kv-cache-interleave-size", "--cp-kv-cache-interleave-size")


@pytest.mark.parametrize("parse", [serve, generate, bench, plan])
def test_every_command_takes_vllms_interleave_size(parse: Any, mistake: Callable[..., str]) -> None:
    for name in NAMES:
        assert parse("-tp", "8", "-dcp", "8", name, "64").kv_cache_interleave_size == 64
    assert parse("-tp", "8", "-dcp", "8").kv_cache_interleave_size is None
    error = mistake(parse, "-tp", "8", "-dcp", "8", NAMES[0], "0")
    assert "must be a whole number, 1 or more; got 0" in error


def test_an_interleave_size_other_than_the_block_size_gets_one_line_of_what_is_done() -> None:
    said: list[str] = []
    for size, parts in ((64, 8), (None, 8), (1, 1)):
        notify_of_interleaving(size, parts, 64, said.append)
    assert said == []
    notify_of_interleaving(1, 8, 64, said.append)
    assert said == [
        "--dcp-kv-cache-interleave-size 1: here each of 8 devices keeps 64 tokens of a page in a "
        "row, --block-size, which changes no answer"
    ]


def test_pair_and_plan_say_that_line(capsys: pytest.CaptureFixture[str]) -> None:
    divided = ParallelOptions(4, False, 4, 1)
    config = EngineConfig(decode_context_parallel_size=4, page_size=16)
    dirs, said = (demo_target_dir(), demo_draft_dir()), []
    load_pair(*dirs, DEFAULTS, divided, configure=lambda *_: config, notify=said.append)
    argv = ["--model", str(dirs[0]), "--isl", "64", "--osl", "64", "-tp", "4", "-dcp", "4"]
    assert plan_main([*argv, NAMES[0], "1"]) == 0
    said += capsys.readouterr().err.splitlines()
    lines = [line for line in said if line.startswith(NAMES[0])]
    assert len(lines) == 2 and all("each of 4 devices keeps 16 tokens" in line for line in lines)


def test_the_draft_is_split_as_the_target_or_not_at_all() -> None:
    assert serve("--tp", "4", *drafts(1)) == ParallelOptions(4, False, 1)
    assert serve("--tp", "4", *drafts(4)) == serve("--tp", "4") == ParallelOptions(4, False, 4)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensors that are read from now on."""
    names: list[str] = []

    def read_box(info: Any, box: Any = None, read: Any = safetensors_files.read_box) -> Any:
        names.append(info.name)
        return read(info, box)

    for module in (safetensors_files, read_parameter, forms):
        monkeypatch.setattr(module, "read_box", read_box)
    return names


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (ParallelOptions(8, False, 8), "4 attention heads cannot be split evenly over 8 devices"),
        (ParallelOptions(16), "XLA_FLAGS=--xla_force_host_platform_device_count=16"),
        (
            ParallelOptions(2, True, 2, None, 8),
            "--data-parallel-size 8 times --tensor-parallel-size 2",
        ),
    ],
)
def test_devices_that_do_not_divide_or_are_not_there_are_refused_before_anything_is_read(
    parallel: ParallelOptions, message: str, reads: list[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        load_pair(demo_target_dir(), demo_draft_dir(), DEFAULTS, parallel)
    assert reads == []


def test_a_pair_too_large_is_refused_before_its_target_is_read(
    reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class SmallDevice:
        limit = 3_000_000

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": self.limit}

    monkeypatch.setattr(AbstractModel, "devices", property(lambda _: [SmallDevice()]))
    parts = r"of the target's weights, .* GiB of the draft's"
    pair = demo_target_dir(), demo_draft_dir(), DEFAULTS, ParallelOptions(4, False, 4)
    with pytest.raises(ValueError, match=parts):
        load_pair(*pair)
    SmallDevice.limit *= 4
    with pytest.raises(ValueError, match=r"too small: .* GiB of KV cache and requests"):
        load_pair(*pair, configure=lambda *_: EngineConfig(max_num_seqs=8))
    assert reads == ["d2t"] * 2, "which tells whether the draft fits its target"
    assert load_pair(*pair).draft, "the weights alone fit"


@pytest.mark.parametrize(
    ("fields", "level", "said"),
    [
        ({"xla_autotune": True}, 0, "--xla-autotune contradicts --xla_gpu_autotune_level=0"),
        ({"exact": True}, 4, "leave --xla_gpu_autotune_level=4 of XLA_FLAGS out"),
    ],
)
def test_flags_of_xla_that_contradict_ours_end_before_the_target_is_read(
    fields: dict[str, Any],
    level: int,
    said: str,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_gpu_autotune_level={level}")
    with pytest.raises(ValueError, match=said):
        load_pair(demo_target_dir(), None, configure=lambda *_: EngineConfig(**fields))
    assert not reads


@pytest.mark.parametrize("parallel", [ParallelOptions(4, False, 1), ParallelOptions(2, True, 2)])
def test_the_embedded_pair_lies_where_the_flags_say(parallel: ParallelOptions) -> None:
    pair = load_pair(demo_target_dir(), demo_draft_dir(), DEFAULTS, parallel)
    assert pair.draft is not None
    mesh = mesh_of(pair.target)
    assert mesh is not None and mesh.size == parallel.tensor_parallel_size
    assert mesh.shape["expert"] == (mesh.size if parallel.enable_expert_parallel else 1)
    kernel: Any = pair.draft.fc.kernel.get_value()
    assert len(kernel.sharding.device_set) == parallel.draft_tensor_parallel_size


RAY = ("--distributed-executor-backend", "ray")
BOTH = ("-tp", "4", "--num-processes", "2")


def parsed(*flags: str) -> RayOptions | None:
    return parse_serve_flags(["--demo", *flags])[0].ray


def test_one_command_says_how_many_processes_ray_places_and_where_they_meet() -> None:
    assert parsed(*RAY, *BOTH) == RayOptions(2, 2, 8476, 8477, False)
    own = ("--master-port", "9", "--plan-port", "5", "--restart-workers")
    assert parsed(*RAY, *BOTH, *own) == RayOptions(2, 2, 9, 5, True)
    assert parsed("--distributed-executor-backend", "mp") is None


@pytest.mark.parametrize(("missing", "extra"), [("ray", "ray"), ("zmq", "hosts")])
def test_a_missing_extra_is_named(
    missing: str, extra: str, installed: set[str], mistake: Callable[..., str]
) -> None:
    installed.remove(missing)
    assert f"pip install 'eagle3-jax[{extra}]'" in mistake(parsed, *RAY, *BOTH)
