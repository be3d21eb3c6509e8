"""Options of the whole suite, shared compiled programs, and memory management."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import context_parts
import jax
import pytest
from room import MOST_MAPS, make_room

from eagle3_tools.aot.targets import AMD, NVIDIA
from pallas_kernels.dispatch import prefer
from pallas_kernels.gpu import CPU_FLAGS
from serve.pair.program_cache import VARIABLE as CACHE

pytest_plugins = ["lost_workers"]

# Sharded tests need 8 devices. Other tests run on the first: a program for one device has the same
# bits and time beside seven idle devices (they share threads), so one process serves both.
jax.config.update("jax_num_cpu_devices", 8)

QUICK = (*CPU_FLAGS, "--xla_cpu_parallel_codegen_split_count=1")
"""XLA flags that cut compilation, most of the time of tests, to a quarter."""

PROGRAMS = Path(__file__).parents[1] / ".cache/test-programs"
MOST_BYTES = 4 * 2**30
"""Compiled programs on disk that a run starts with; if there are more, it starts with none."""

SLOWEST = (
    *("tiny", "devices", "test_light_clients", "served pair", "test_train_cli"),
    *("test_two_processes", "test_transcripts", "test_placement", "test_features_command"),
    *("test_golden_images", "test_minimax_end_to_end", "test_round_collectives"),
)
"""Groups of a minute and more. They begin first, so that no worker waits for one at the end."""

MOST_YOUNG = 20_000
"""Objects allocated between two garbage collections; more would leave too much garbage."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="run the proofs in tests/proofs at full length"
    )
    parser.addoption(
        "--optimise", action="store_true", help="compile as users do, not quickly; so does --long"
    )
    parser.addoption(
        "--kernels", metavar="NAME", help="the implementation of operations where none is named"
    )
    parser.addoption(
        "--context-parts",
        type=int,
        default=1,
        metavar="D",
        help="the tests' pair lies on D devices, which divide its contexts: 1, 2, 4 or 8",
    )
    parser.addoption("--browser", action="store_true", help="drive the page in Chromium")
    parser.addoption("--screenshot", metavar="FILE", help="where to keep a picture of the page")
    parser.addoption(
        "--rocm", action="store_true", help="fail, not skip, where XLA's ROCm compiler is missing"
    )
    parser.addoption(
        "--cuda", action="store_true", help="fail, not skip, where XLA's CUDA compiler is missing"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set XLA flags and the program cache before the first program, for child processes too.

    GPU code is compiled as for users, because its registers are judged. SIGINT is reset because
    child processes must not ignore Ctrl-C, as they do if pytest does (a shell's background job).
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not any(map(config.getoption, ("long", "optimise", "rocm", "cuda"))):
        flags = os.environ.get("XLA_FLAGS", "").split()
        os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys([*QUICK, *flags]))
    # Compiling for GPUs leaves files that tests read, so it must not come from a cache.
    share_programs(config, not AMD.is_installed() and not NVIDIA.is_installed())
    context_parts.PARTS = config.getoption("context_parts")


def share_programs(config: pytest.Config, shared: bool) -> None:
    """Share compiled programs between workers, servers and runs, but not with the user's cache."""
    directory = str(PROGRAMS) if shared else ""
    if shared and not hasattr(config, "workerinput"):
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        if sum(file.stat().st_size for file in PROGRAMS.iterdir()) > MOST_BYTES:
            shutil.rmtree(PROGRAMS)
    os.environ |= {CACHE: directory, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    jax.config.update("jax_compilation_cache_dir", directory or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out `long` tests unless `--long` is given, and group tests for xdist.

    One worker then has a file's fixtures. The engine's tests form one group, which traces their
    shared compiled programs once.
    """
    if not config.getoption("long"):
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("long")])
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
    items.sort(key=place_of)


def place_of(item: pytest.Item) -> int:
    """Return the place of the item's group in SLOWEST; all others follow in their own order."""
    mark = item.get_closest_marker("xdist_group")
    return SLOWEST.index(mark.args[0]) if mark and mark.args[0] in SLOWEST else len(SLOWEST)


def group_of(path: Path) -> str:
    """Return the xdist group of a file's tests."""
    of_the_tiny_pair = path.parts[-3:-1] in (
        ("eagle3_jax", "engine"),
        ("eagle3_jax", "speculative"),
    )
    return "tiny" if of_the_tiny_pair else path.stem


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze loaded objects, so that garbage collections during tracing do not scan them.

    Raises UsageError if xdist does not put groups into test ids, as 3.8 with pytest 9.2. Each test
    would then be its own group, and every worker would create every fixture.
    """
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this xdist does not group tests with this pytest: install <9.2")
    gc.freeze()
    gc.set_threshold(MOST_YOUNG)


@pytest.fixture(scope="session", autouse=True)
def preferred_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply `--kernels` to every test, as in `pytest tests/eagle3_jax/engine --kernels pallas`."""
    with prefer(request.config.getoption("kernels")):
        yield


@pytest.fixture(scope="session")
def rocm_compiler(request: pytest.FixtureRequest) -> None:
    """Skip tests that need XLA's ROCm compiler without it; `make rocm-check` runs them all."""
    if not (AMD.is_installed() or request.config.getoption("--rocm")):
        pytest.skip("XLA's ROCm compiler is not installed (extra rocm); see make rocm-check")


@pytest.fixture(scope="session")
def cuda_compiler(request: pytest.FixtureRequest) -> None:
    """Skip tests that need XLA's CUDA compiler without it; `make cuda-check` runs them all."""
    if not (NVIDIA.is_installed() or request.config.getoption("--cuda")):
        pytest.skip("XLA's CUDA compiler is not installed; see make cuda-check")


@pytest.fixture(scope="module", autouse=True)
def room_for_programs(pytestconfig: pytest.Config) -> Iterator[None]:
    """Drop compiled programs between modules if there are many.

    With `--kernels` always: one module of interpreted kernels may use most memory maps.
    """
    yield
    make_room(0 if pytestconfig.getoption("kernels") else MOST_MAPS)
