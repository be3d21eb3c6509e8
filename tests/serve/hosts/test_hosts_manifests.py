"""The examples of several hosts give each process its place, as its cluster tells it."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from serve.asgi.graceful import CONNECTION_TIMEOUT_S
from serve.options.hosts import HostOptions
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
SCHEMAS = Path(__file__).with_name("schemas")
GROUP, SERVICE = yaml.safe_load_all((DEPLOY / "leader_worker_set.yaml").read_text())
POOL = yaml.safe_load((DEPLOY / "llm_d.yaml").read_text())
TEMPLATE: dict[str, Any] = GROUP["spec"]["leaderWorkerTemplate"]


def options_of(pod: dict[str, Any], key: Path) -> ServeOptions:
    (container,) = pod["containers"]
    command, *model = container["command"]
    assert command == "eagle3-serve"
    (mount,) = (m["mountPath"] for m in container["volumeMounts"] if m["name"] == "key")
    (secret,) = (v["secret"] for v in pod["volumes"] if v["name"] == "key")
    assert secret["defaultMode"] & 0o077 == 0
    flags = [flag.replace(f"={mount}/key", f"={key}") for flag in container["args"]]
    return parse_serve_flags([*model, *flags])[0]


def strict(schema: Any) -> Any:
    """Refuse fields that the schema does not name, as Kubernetes does with strict fields."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return closed | {name: strict(value) for name, value in schema.items()}


def test_manifests_are_valid_by_the_schemas_of_their_projects() -> None:
    for manifest, name in ((GROUP, "leader_worker_set"), (POOL, "inference_pool")):
        schema = json.loads((SCHEMAS / f"{name}.json").read_text())
        Draft202012Validator(strict(schema)).validate(manifest)


def test_the_service_the_pool_and_the_probe_reach_the_leader_alone() -> None:
    (leader,) = TEMPLATE["leaderTemplate"]["spec"]["containers"]
    (worker,) = TEMPLATE["workerTemplate"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in leader["ports"]}
    assert ports == {"http": 8000, "coordinator": 8476, "plans": 8477}
    assert leader["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert "readinessProbe" not in worker
    labels, chosen = TEMPLATE["leaderTemplate"]["metadata"]["labels"], SERVICE["spec"]["selector"]
    assert chosen.items() >= labels.items()
    assert POOL["spec"]["selector"]["matchLabels"] == chosen
    assert [port["number"] for port in POOL["spec"]["targetPorts"]] == [ports["http"]]


def test_pods_of_a_group_are_one_engine_over_all_their_gpus(
    monkeypatch: pytest.MonkeyPatch, key: Path
) -> None:
    monkeypatch.setenv("LWS_LEADER_ADDRESS", "kimi-0.kimi.default")
    monkeypatch.setenv("LWS_GROUP_SIZE", str(TEMPLATE["size"]))
    for worker, role in enumerate(("leader", "worker")):
        monkeypatch.setenv("LWS_WORKER_INDEX", str(worker))
        pod = TEMPLATE[f"{role}Template"]["spec"]
        options, (container,) = options_of(pod, key), pod["containers"]
        assert options.hosts == HostOptions(("kimi-0.kimi.default", 8476), 8477, 2, worker, key)
        gpus = container["resources"]["limits"]["amd.com/gpu"]
        assert options.parallel.tensor_parallel_size == gpus * TEMPLATE["size"]
        assert options.drain_timeout_s + CONNECTION_TIMEOUT_S < pod["terminationGracePeriodSeconds"]


def test_a_job_starts_one_process_a_node_over_all_its_gpus(
    monkeypatch: pytest.MonkeyPatch, key: Path
) -> None:
    text = (DEPLOY / "slurm.sbatch").read_text()
    assert "--nodes=2" in text and "--ntasks-per-node=1" in text and "--gpus-per-node=8" in text
    command = text[text.index("exec srun") :].replace("\\\n", " ")
    flags = shlex.split(command)[shlex.split(command).index("eagle3-serve") + 1 :]
    step = {"SLURM_JOB_ID": "4096", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
    for name, value in (step | {"SLURM_PROCID": "1"}).items():
        monkeypatch.setenv(name, value)
    flags[flags.index("$HOME/eagle3-hosts-key")] = f"{key}"
    options, _ = parse_serve_flags(flags)
    assert options.hosts == HostOptions(("n1", 61440), 61441, 2, 1, key)
    assert options.parallel.tensor_parallel_size == 16


def test_the_image_of_the_group_has_what_several_hosts_need() -> None:
    """The extra `hosts`, and a volume where it keeps compiled programs; only HTTP has a key."""
    lines = (DEPLOY / "Dockerfile.rocm").read_text().splitlines()
    (installed,) = (line for line in lines if "pip install" in line)
    assert "hosts" in installed.partition("[")[2].partition("]")[0].split(",")
    (kept,) = (line for line in lines if line.startswith("ENV JAX_COMPILATION_CACHE_DIR="))
    keyed = {}
    for role in ("leader", "worker"):
        (container,) = TEMPLATE[f"{role}Template"]["spec"]["containers"]
        assert kept.partition("=")[2] in [m["mountPath"] for m in container["volumeMounts"]]
        keyed[role] = "VLLM_API_KEY" in [one["name"] for one in container.get("env", [])]
    assert keyed == {"leader": True, "worker": False}
