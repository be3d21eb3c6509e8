"""--config FILE gives flags their values, the command line goes before it, mistakes are named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

CONFIG = """
# As vLLM reads it: keys are flags, with dashes or underscores.
model: /models/target
served-model-name: [first, second]
port: 8001
max_model_len: 4096
enable-prefix-caching: false
disable-uvicorn-access-log: true
exact: false
trust-remote-code: true
allowed-origins: ["https://a.org"]
speculative-config: {model: /models/draft, num_speculative_tokens: 2}
"""


@pytest.fixture
def write(tmp_path: Path):
    def writing(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return writing


def read(*argv: str) -> tuple[ServeOptions, list[str]]:
    return parse_serve_flags(argv)


def test_a_file_says_what_the_same_flags_would_say(write) -> None:
    flags = ["--model", "/models/target", "--served-model-name", "first", "second"]
    flags += ["--port", "8001", "--max-model-len", "4096", "--no-enable-prefix-caching"]
    flags += ["--disable-uvicorn-access-log", "--trust-remote-code"]
    flags += ["--allowed-origins", '["https://a.org"]', "--speculative-config"]
    flags += ['{"model": "/models/draft", "num_speculative_tokens": 2}']
    assert read("--config", write(CONFIG)) == read(*flags)


def test_the_command_line_goes_before_the_file_wherever_it_stands(write) -> None:
    path = write(CONFIG)
    argv = ["--port", "9000", "--served-model-name", "third", "--enable-prefix-caching"]
    for order in ([*argv, "--config", path], [f"--config={path}", *argv]):
        options, without_effect = read("/models/other", *order)
        assert (options.model, options.port) == ("/models/other", 9000)
        assert options.served_model_name == ("third",)
        assert options.engine.enable_prefix_caching
        assert options.max_model_len == 4096 and options.speculation.draft == "/models/draft"
        assert without_effect == ["--trust-remote-code"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 8000", "'prot'; did you mean port?"),
        ("config: other.yaml", "'config'"),
        ("3: 4", "3"),
        ("port:", "'port' has no value"),
        ("exact: 1", "'exact' must be true or false"),
        ("- port", "keys"),
        ("a: [b", "not YAML"),
        ("port: eight", "--server-port: must be in 0..65535; got eight"),
        ("port: 99999", "--server-port: must be in"),
        ("x: !!python/object/apply:os.system [echo]", "not YAML"),
    ],
)
def test_what_is_wrong_in_a_file_costs_one_line(
    write, mistake: Callable[..., str], text: str, said: str
) -> None:
    assert said in mistake(read, "--demo", "--config", write(text))
    nowhere = "/nowhere/config.yaml"
    assert nowhere in mistake(read, "--demo", "--config", nowhere)
