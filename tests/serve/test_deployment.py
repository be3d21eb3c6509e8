"""docs/server.md and docs/deploy fit the server."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_engine import FakeEngine
from fake_server import Served, build_service

from eagle3_tools.reference import ROOT
from eagle3_tools.reference.parsers import parser_of
from serve.app import create_app
from serve.asgi.graceful import CONNECTION_TIMEOUT_S
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
DEPLOYMENT, SERVICE, *_ = yaml.safe_load_all((DEPLOY / "kubernetes/server.yaml").read_text())
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
VALUES = dict(re.findall(r"(?m)^(\w+)=(.*)$", (DEPLOY / "kubernetes/values.env").read_text()))
UNIT = (DEPLOY / "eagle3-serve.service").read_text()


def options_of_unit() -> ServeOptions:
    (command,) = re.findall(r"^ExecStart=\S+/eagle3-serve (.*)$", UNIT, re.MULTILINE)
    return parse_serve_flags(shlex.split(command))[0]


def options_of_pod() -> ServeOptions:
    """Those of the arguments in which Kubernetes has put the values."""
    args = [re.sub(r"\$\((\w+)\)", lambda m: VALUES[m[1]], a) for a in POD["containers"][0]["args"]]
    return parse_serve_flags(args)[0]


def test_a_pod_has_the_values_and_a_gpu_for_each_device() -> None:
    options, limits = options_of_pod(), POD["containers"][0]["resources"]["limits"]
    assert options.model == VALUES["MODEL"]
    assert options.parallel.tensor_parallel_size == limits["amd.com/gpu"]
    assert f"{options.parallel.tensor_parallel_size}" == VALUES["TENSOR_PARALLEL_SIZE"]
    assert f"{POD['terminationGracePeriodSeconds']}" == VALUES["TERMINATION_GRACE"]


def test_whoever_stops_the_server_waits_until_it_has_drained() -> None:
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    for options, patience_s in (
        (options_of_unit(), int(patience)),
        (options_of_pod(), POD["terminationGracePeriodSeconds"]),
    ):
        assert options.operations.log_format == "json"
        assert options.drain_timeout_s + CONNECTION_TIMEOUT_S < patience_s


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.rocm"])
def test_an_image_starts_the_server_on_its_port_for_everybody(name: str) -> None:
    text = (DEPLOY / name).read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    command, *flags = yaml.safe_load(entry)
    options, _ = parse_serve_flags([*flags, "--demo"])
    assert (command, options.host) == ("eagle3-serve", "0.0.0.0")
    assert f"EXPOSE {options.port}" in text


def test_probes_and_collectors_ask_for_what_the_server_has(fake: Served) -> None:
    (container,) = POD["containers"]
    probes = [probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")]
    assert len(probes) == 3
    (port,) = container["ports"]
    for probe in probes:
        assert fake.http.get(probe["path"]).status_code == 200 and probe["port"] == port["name"]
    notes = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert fake.http.get(notes["prometheus.io/path"]).status_code == 200
    assert int(notes["prometheus.io/port"]) == port["containerPort"] == options_of_pod().port


def test_the_service_finds_the_pods() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == labels == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert SERVICE["spec"]["ports"][0]["targetPort"] == POD["containers"][0]["ports"][0]["name"]


TEXT = (ROOT / "docs/server.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`]+)`", TEXT)


def test_every_route_is_in_the_table_and_no_other() -> None:
    routes = {path for path in create_app(build_service(FakeEngine())).openapi()["paths"]}
    table = TEXT.partition("## Endpoints")[2].partition("## Flags")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    named = {path for row in rows for path in re.findall(r"(/[\w./{}]*)[`]", row.split("|")[1])}
    assert routes <= named
    hidden = {"/", "/page/{name}", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"}
    assert named - routes <= hidden


def test_every_flag_is_named_and_no_other() -> None:
    flags = parser_of("serve.cli:main")._option_string_actions
    named = {name for text in QUOTED for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)}
    missing = sorted(set(flags) - named)
    assert not missing
    assert {n for n in named if n.replace("_", "-") not in flags} == set()
