"""eagle3-serve's command line: names of two other engines, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from eagle3_jax.engine import EngineConfig
from serve.options.foreign import describe_ignored_flags, describe_ignored_variables
from serve.options.memory import MemoryShare
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

SGLANG = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d"]
HOSTS = ["--coordinator-address", "[::1]:1", "--num-processes", "2", "--process-id", "0"]
HOSTS += ["-tp", "8"]
STEPS = "--speculative-num-steps"
TREE = ["--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "12"]

K0, K3 = EngineConfig(num_speculative_tokens=0), EngineConfig(num_speculative_tokens=3)
TABLE = "num_speculative_tokens_per_batch_size"
LENGTH, TOKENS = "synthetic_acceptance_length", "num_speculative_tokens"
NOT_SAFE = [("--allowed-origins", "https://a.org"), ("--allowed-origins", "[1]")]
NOT_SAFE += [("--allowed-methods", '["GET"]'), ("--root-path", "llm"), ("--ssl-keyfile", "a.pem")]
NOT_SAFE += [("--allowed-hosts", "https://a.example"), ("--allowed-hosts", "a.example:80")]
SHARES = [("--gpu-memory-utilization", "1.1"), ("--mem-fraction-static", "0")]
BAD_KEYS = ("", " a", "ä", "a\n")
KWARGS, ROPE = "--default-chat-template-kwargs", "--draft-rope-theta"
SCALE = ["--kv-cache-dtype", "fp8", "--kv-cache-scale"]
REPLICAS = ["--demo", "--data-parallel-size", "2", "--enable-expert-parallel"]
EVENTS = '{"enable_kv_cache_events": true}'
RAY = ["--distributed-executor-backend", "ray"]
BY_RAY = ["--demo", *RAY, "-tp", "4", "--num-processes", "2"]
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}


def parse(*argv: str) -> ServeOptions:
    return parse_serve_flags(argv)[0]


def spec(**config: object) -> list[str]:
    return ["--speculative-config", json.dumps(config)]


def synthetic(**config: object) -> list[str]:
    return spec(rejection_sample_method="synthetic", **config)


def test_both_spellings_of_a_flag_are_one() -> None:
    dashes = parse("m", "--max-model-len", "99", "--max-num-seqs=4", "--block-size", "8")
    assert dashes == parse("m", "--max_model_len", "99", "--max_num_seqs=4", "--block_size", "8")
    assert (dashes.engine.max_model_len, dashes.max_model_len) == (99, 99)
    assert (dashes.engine.max_num_seqs, dashes.engine.page_size) == (4, 8)
    assert parse("my_model", "--served_model_name", "a_b", "c").served_model_name == ("a_b", "c")


def test_sglang_names_give_the_same_options() -> None:
    vllm = parse("m", *spec(model="d", num_speculative_tokens=5), "--max-model-len", "99")
    steps = ["--speculative-num-steps", "5", "--speculative-num-draft-tokens", "6"]
    topk = ["--speculative-eagle-topk", "1"]
    sglang = parse("--model-path", "m", *SGLANG, *steps, *topk, "--context-length", "99")
    assert vllm.engine == replace(sglang.engine, num_draft_tokens=None)
    assert vllm.speculation.draft == sglang.speculation.draft == "d"
    assert (vllm.model, vllm.max_model_len) == (sglang.model, sglang.max_model_len)


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["m"], (None, K0)),
        (["--demo"], (None, K3)),
        (["--demo", *spec(num_speculative_tokens=0)], (None, K0)),
        (["m", *spec(model="d")], ("d", K3)),
        (["m", *spec(model="d", method="eagle3", draft_tensor_parallel_size=1)], ("d", K3)),
        (["m", *SGLANG], ("d", K3)),
        (
            ["m", *spec(model="d", num_speculative_tokens_per_batch_size=[[5, 8, 0], [1, 4, 3]])],
            ("d", replace(K3, num_speculative_tokens_per_batch_size=((5, 8, 0), (1, 4, 3)))),
        ),
        (
            ["m", *SGLANG, "--speculative-num-draft-tokens", "5"],
            ("d", EngineConfig(num_speculative_tokens=4, num_draft_tokens=5)),
        ),
        (["m", *SGLANG, *TREE], ("d", replace(K3, eagle_topk=4, num_draft_tokens=12))),
        (["m", "--exact", *spec(num_speculative_tokens=3)], (None, replace(K3, exact=True))),
    ],
)
def test_speculation(argv: list[str], expected: tuple[str | None, EngineConfig]) -> None:
    options = parse(*argv)
    assert (options.speculation.draft, options.engine) == expected


def test_the_method_is_coupled_unless_the_configuration_says_otherwise() -> None:
    assert parse("--demo").engine.rejection_sample_method == "coupled"
    standard = parse("--demo", *spec(rejection_sample_method="standard")).engine
    assert standard.rejection_sample_method == "standard"
    forced = parse("--demo", *synthetic(synthetic_acceptance_rates=[1, 0.5, 0])).engine
    assert forced.method.synthetic_acceptance_length == 2.5


def test_keys_of_the_configuration_are_flags_too() -> None:
    keys = {"model": "my_draft", "num-speculative-tokens": "5"}
    keys |= {"rejection_sample_method": "standard"}
    config = {k.replace("-", "_"): v for k, v in keys.items()} | {"num_speculative_tokens": 5}
    apart = [word for k, v in keys.items() for word in (f"--speculative_config.{k}", v)]
    joined = [f"--speculative_config.{k}={v}" for k, v in keys.items()]
    assert parse("m", *apart) == parse("m", *joined) == parse("m", *spec(**config))


def test_flags_of_both_engines_about_memory_sampling_and_prefixes() -> None:
    """SGLang's share of memory leaves programs out; OpenAI's sampling defaults are no defaults."""
    shares = {"--gpu-memory-utilization=0.9": MemoryShare(0.9)}
    shares["--mem_fraction_static=0.8"] = MemoryShare(0.8, programs_on_top=True)
    for flag, share in shares.items():
        assert parse("m", flag).memory == share
    defaults = parse("m")
    assert (defaults.host, defaults.port) == ("127.0.0.1", 8000), "no other machine by default"
    assert defaults.memory is None and defaults.generation_config == "auto"
    for argv in (["--sampling-defaults", "openai"], ["--generation-config", "vllm"]):
        assert parse("m", *argv).generation_config == "vllm"
    assert defaults.engine.enable_prefix_caching
    assert parse("m", "--enable-prefix-caching").engine.enable_prefix_caching
    for flag in ("--no-enable-prefix-caching", "--disable_radix_cache"):
        assert not parse("m", flag).engine.enable_prefix_caching


def test_a_flag_without_effect_is_said_once_with_its_reason() -> None:
    argv = ["m", "--trust-remote-code", "--trust_remote_code", "--no-async-scheduling"]
    argv += ["--dtype", "auto"]
    lines = list(describe_ignored_flags(parse_serve_flags(argv)[1]))
    assert len(lines) == 2 and "no code is run" in lines[0]
    assert lines[1].startswith("--no-async-scheduling has no effect in this engine: ")


def test_variables_of_other_engines_are_named_by_what_they_are() -> None:
    kernels = {"VLLM_ROCM_USE_AITER": "1", "AITER_LOG": "0", "SGLANG_USE_AITER": ""}
    others = {"SGLANG_NUMA_BIND_V2": "1", "OMP_NUM_THREADS": "1"}
    obeyed = {"HOME": "/", "VLLM_API_KEY": "k", "HF_HOME": "/", "HIP_VISIBLE_DEVICES": "0"}
    assert list(describe_ignored_variables({**kernels, **others, **obeyed})) == [
        "not read, choose or build kernels of other engines: "
        "AITER_LOG, SGLANG_USE_AITER, VLLM_ROCM_USE_AITER",
        "not read, options of other engines: SGLANG_NUMA_BIND_V2",
        "not read, threads of OpenMP, which nothing here uses: OMP_NUM_THREADS",
    ]


def test_keys_of_the_draft_alone_change_nothing_and_say_so() -> None:
    ours = parse("m", *spec(model="d"))
    keys = {"attention_backend": "TRITON_MLA", "enforce_eager": True, "kv_cache_dtype": "auto"}
    keys |= {"max_model_len": 99, "quantization": "fp8"}
    lacking = {"parallel_drafting": False, "tensor_parallel_size": None}
    options, names = parse_serve_flags(["m", *spec(model="d", **keys, **lacking)])
    assert replace(options.speculation, without_effect=()) == ours.speculation
    lines = list(describe_ignored_flags(names))
    for line, key in zip(lines, keys, strict=True):
        assert line.startswith(f"--speculative-config {key} has no effect in this engine: ")


def test_values_that_change_nothing_are_taken() -> None:
    """The draft's cache has the target's dtype, and weights are safetensors."""
    assert parse("m", "--load-format", "safetensors") == parse("m")
    for dtype in ("fp8", "fp8_e4m3"):
        target = ["--kv-cache-dtype", "fp8", "--kv-cache-scale", "1"]
        options = parse("m", *spec(model="d", kv_cache_dtype=dtype), *target)
        assert options.engine.kv_cache_dtype == "fp8"


@pytest.mark.parametrize(
    "argv, naming",
    [
        (["m", "--model", "other"], "two models are named: m and --model other"),
        ([], "--demo"),
        (["m", "--demo"], "--demo"),
        (["m", "--port", "70000"], "--port"),
        (["m", "--max-num-seqs", "0"], "--max-num-seqs"),
        (["m", "--drain-timeout", "-1"], "--drain-timeout"),
        (["m", "--nonsense"], "--nonsense"),
        (["m", "--dtype", "float16"], "--dtype"),
        (["m", "--load-format", "dummy"], "--load-format"),
        *((["m", flag, value], f"{flag}: must be above 0 and at most 1") for flag, value in SHARES),
        (
            ["m", "--gpu-memory-utilization", ".9", "--num-gpu-blocks-override", "99"],
            "give one: --gpu-memory-utilization, --num-gpu-blocks-override",
        ),
        (["m", *HOSTS, "--mem-fraction-static", "0.8"], "several hosts must agree"),
        (["m", "--speculative-config.model"], "--speculative-config.model needs a value"),
        (["m", *spec(model="d"), "--speculative-config.model=d"], "not both"),
        (["m", "--speculative-config.k", "3"], "unknown keys ['k']"),
        (["m", "--tensor-parallel-size", "0"], "must be a whole number, 1 or more; got 0"),
        (["m", "--tp", "8", "--ep-size", "4"], "all of them: 8; got 4"),
        (["m", "--speculative-config", "{"], "not valid JSON"),
        (["m", "--speculative-config", "[]"], "JSON object"),
        (["m", *spec(model="d", k=3)], "unknown keys ['k']"),
        (["m", *spec(model="d", kv_cache_dtype="fp8")], "--kv-cache-dtype, 'auto'; got 'fp8'"),
        (["m", *spec(num_speculative_tokens=3)], "needs a draft"),
        (["m", *spec(model="d", num_speculative_tokens=9)], "0..8, got 9"),
        (["m", *spec(model="d", num_speculative_tokens=True)], "got True"),
        (["m", *spec(model=3)], "directory"),
        (["m", *spec(model="d", method="mtp")], "'eagle3' and 'ngram'; got 'mtp'"),
        (["m", *spec(model="d", method="ngram")], "leave model 'd' out"),
        (["m", *spec(model="d", prompt_lookup_max=0)], "1 <= min <= max <= 32; got 0 and 0"),
        (["m", *spec(model="d", num_lookup_tokens=2)], "num_speculative_tokens=3..32; got 2"),
        (["--demo", "--adaptive", *spec(prompt_lookup_max=4)], "cannot be combined with lookup"),
        (["m", *spec(model="d", rejection_sample_method="blocks")], "standard, block, synthetic"),
        (["m", *spec(model="d", draft_sample_method="best")], "or greedy; got 'best'"),
        (["m", *spec(model="d", parallel_drafting=True)], "parallel_drafting is not supported"),
        (["m", *spec(model="d", tensor_parallel_size=2)], "give draft_tensor_parallel_size"),
        (["m", *spec(model="d", rejection_sample_method=["standard"])], "got ['standard']"),
        (["m", *spec(model="d", rejection_sample_method="synthetic")], "got 0 of them"),
        (["m", *spec(model="d", synthetic_acceptance_length=2.9)], "'synthetic'; it is 'coupled'"),
        (["--demo", *synthetic(**{LENGTH: 4.1})], "[1, 4]; got 4.1"),
        (["--demo", *synthetic(**{LENGTH: "2"})], "must be a number; got '2'"),
        (["--demo", *synthetic(synthetic_acceptance_rates=0.2)], "list of numbers; got 0.2"),
        (["--demo", *synthetic(**{LENGTH: 1, TOKENS: 0})], "a draft and k of at least 1"),
        (["--demo", "--exact", *spec(rejection_sample_method="standard")], "--exact promises"),
        (["m", *spec(model="d", draft_tensor_parallel_size=4)], "--tensor-parallel-size: 1; got 4"),
        (["m", "-tp", "8", *spec(model="d", draft_tensor_parallel_size=4)], "8; got 4"),
        (["--demo", *spec(model="d")], "--demo"),
        (["m", *SGLANG, "--speculative-eagle-topk", "4"], "2..37 with --speculative-eagle-topk 4"),
        (["m", *SGLANG, *TREE, STEPS, "1"], "2..5 with --speculative-eagle-topk 4 and 1"),
        (["m", *SGLANG, *TREE, "--exact"], "--exact needs drafts in chains"),
        (["m", *SGLANG, *TREE, "-tp", "4", "-dcp", "2"], "-parallel-size needs drafts in chains"),
        (["m", *SGLANG, *TREE, "--adaptive"], "a choice of k (--adaptive or"),
        (["m", "--speculative-algorithm", "NGRAM"], "--speculative-algorithm"),
        (["m", "--speculative-draft-model-path", "d"], "--speculative-algorithm"),
        (["m", *SGLANG, STEPS, "3", "--speculative-num-draft-tokens", "3"], "must be 4"),
        (["m", *SGLANG, *spec(model="d")], "--speculative-config"),
        (["m", "--adaptive"], "at least 1 with --adaptive, got 0"),
        (["--demo", "--exact", *spec(**{TABLE: [[1, 8, 1]]})], f"leave {TABLE} out"),
        (["--demo", "--adaptive", *spec(**SYNTHETIC)], "which --adaptive changes"),
        (["--demo", *spec(**{TABLE: [[1, 8, 4]]})], "0..num_speculative_tokens=3"),
        (["--demo", *spec(**{TABLE: [[1, 4]]})], "three integers"),
        (["--demo", *spec(**{TABLE: 3})], "must be a list"),
        *((["m", flag, value], flag) for flag, value in NOT_SAFE),
        (["m", "--allow-credentials"], "--allow-credentials"),
        (["m", "--allowed-origins", '["*"]', "--allow-credentials"], "--allow-credentials"),
        (["m", "--ssl-certfile", "cert.pem", "--ssl-cert-reqs", "2"], "--ssl-cert-reqs"),
        *((["m", "--api-key", key], "--api-key") for key in BAD_KEYS),
        *((["m", "--admin-api-key", key], "--admin-api-key") for key in BAD_KEYS),
        (["m", "--api-key", "a", "b", "--admin-api-key", "b"], "--admin-api-key must differ"),
        (["m", "--reasoning-parser", "oracle"], "invalid choice: 'oracle'"),
        (["m", "--chat-template", "nowhere.jinja"], "--chat-template: can't read nowhere.jinja: "),
        (["m", KWARGS, "{"], "--default-chat-template-kwargs: is not valid JSON"),
        (["m", KWARGS, "[]"], "must be a JSON object"),
        (["m", "--kv-cache-scale", "1"], "--kv-cache-scale needs --kv-cache-dtype fp8"),
        (["m", *SCALE, "-1"], "--kv-cache-scale must be positive, got -1"),
        (["m", *SCALE, "nan"], "must be positive, got nan"),
        (["m", *SCALE, "no.json"], "a number or a file that can be read; no.json: No such file"),
        *((["--demo", f"{ROPE}={v}"], f"a number above 0; got {v}") for v in ("0", "-1", "nan")),
        *((["--demo", f"{ROPE}={v}"], f"a number above 0; got {v}") for v in ("inf", "ten")),
        (["--demo", "--dp", "2"], "--data-parallel-size 2 needs --enable-expert-parallel"),
        (["--demo", "--dp", "0"], "--dp-size: must be a whole number, 1 or more; got 0"),
        (["--demo", "--dp", "2", "--ep", "4", "--tp", "4"], "all of them: 8; got 4"),
        ([*REPLICAS, "--kv-offloading-size", "1"], "--data-parallel-size must be 1, got 2"),
        ([*REPLICAS, "--kv-events-config", EVENTS], "--data-parallel-size must be 1"),
        ([*REPLICAS, "--kv-role", "producer"], "replicas transfer no pages"),
        (["--demo", *RAY, "-tp", "4"], "needs --num-processes, at least 2"),
        (["--demo", *RAY, "-tp", "3", "--nnodes", "2"], "a divisor of the 3 devices"),
        ([*BY_RAY, "--process-id", "0"], "places all processes and makes their key"),
        ([*BY_RAY, "--distributed"], "leave out --coordinator-address"),
        (["m", "--restart-workers"], "--restart-workers needs --distributed-executor-backend ray"),
        (["m", RAY[0], "external_launcher"], "invalid choice"),
        (["m", "--load-format", "runai_streamer"], "invalid choice"),
    ],
)
def test_mistakes_end_with_status_2_and_one_line(
    argv: list[str], naming: str, mistake: Callable[..., str]
) -> None:
    assert naming in mistake(parse, *argv)
