"""An engine whose processes Ray places: what must be given, and what must not."""

import pytest

from serve.options.executor.ray import RayOptions
from serve.options.serve_flags import parse_serve_flags

RAY = ("--distributed-executor-backend", "ray")
BOTH = ("-tp", "4", "--num-processes", "2")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.options.executor.ray.find_spec", lambda _: True)


def parsed(*flags: str) -> RayOptions | None:
    return parse_serve_flags(["--demo", *flags])[0].ray


def test_one_command_says_how_many_and_where_they_meet() -> None:
    assert parsed(*RAY, *BOTH) == RayOptions(2, 2, 8476, 8477, False)
    own = ("--master-port", "9", "--plan-port", "5", "--restart-workers")
    assert parsed(*RAY, *BOTH, *own) == RayOptions(2, 2, 9, 5, True)
    assert parsed("--distributed-executor-backend", "mp") is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((*RAY, "-tp", "4"), "needs --num-processes, at least 2"),
        ((*RAY, "-tp", "3", "--nnodes", "2"), "a divisor of the 3 devices"),
        ((*RAY, *BOTH, "--process-id", "0"), "places all processes and makes their key"),
        ((*RAY, *BOTH, "--distributed"), "leave out --coordinator-address"),
        (("--restart-workers",), "--restart-workers needs --distributed-executor-backend ray"),
        (("--distributed-executor-backend", "external_launcher"), "invalid choice"),
        (("--load-format", "runai_streamer"), "invalid choice"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*flags)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "extra"), [("ray", "ray"), ("zmq", "hosts")])
def test_a_missing_extra_is_named(
    missing: str,
    extra: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "serve.options.executor.ray.find_spec", lambda name: None if name == missing else True
    )
    with pytest.raises(SystemExit):
        parsed(*RAY, *BOTH)
    assert f"pip install 'eagle3-jax[{extra}]'" in capsys.readouterr().err
