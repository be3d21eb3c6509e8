"""Environments of clients: virtual environments shared by those that agree, and npm's folder."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VLLM_NEEDS = (
    "pydantic transformers>=5,<6 msgspec cloudpickle psutil sentencepiece numpy requests tqdm "
    "blake3 py-cpuinfo protobuf fastapi aiohttp openai prometheus_client pillow tiktoken "
    "diskcache lark filelock partial-json-parser pyzmq gguf pyyaml einops depyf watchfiles "
    "python-json-logger scipy pybase64 cbor2 setproctitle regex cachetools ijson pandas "
    "datasets ipython loguru orjson uvloop openai-harmony mcp xgrammar llguidance "
    "compressed-tensors"
)
"""Of vLLM's and SGLang's requirements those that their benchmark clients import."""

INSTALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lm_eval": (("lm_eval[api]==0.4.13", "openai==3.54.0", "pillow"),),
    "locust": (("locust==2.47.0",),),
    "aiperf": (("aiperf==0.13.0",),),
    "guidellm": (("guidellm==0.8.1",),),
    "vllm": (
        ("torch", "torchvision"),
        ("--no-deps", "vllm==0.33.0", "sglang==0.5.23"),
        tuple(VLLM_NEEDS.split()),
    ),
    "protocols": (
        (
            *("anthropic==2.12.0", "openai==3.54.0", "openai-agents==0.24.0"),
            *("langchain-anthropic==1.7.7", "litellm==1.83.0"),
        ),
    ),
    "routers": (("vllm-router==0.1.17", "sglang-router==0.3.2"),),
}
"""Arguments of `pip install`, run after each other."""


def make_environment(name: str, directory: Path) -> Path:
    """Installs the environment unless it is there; returns the directory of its programs."""
    home = directory / name
    done = home / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        for arguments in INSTALLS[name]:
            subprocess.run([home / "bin" / "pip", "install", "--quiet", *arguments], check=True)
        done.touch()
    return home / "bin"


def make_node_environment(packages: Sequence[str], directory: Path) -> Path:
    """Installs npm's packages unless they are there; returns the directory of `node_modules`."""
    home = directory / "npm"
    home.mkdir(parents=True, exist_ok=True)
    done = home / "installed"
    there = done.read_text().split() if done.exists() else []
    if missing := [package for package in packages if package not in there]:
        install = ["npm", "install", "--prefix", home, "--no-audit", "--no-fund", *missing]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        done.write_text("\n".join([*there, *missing]))
    return home
