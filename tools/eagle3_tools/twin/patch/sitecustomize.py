"""Tell JAX that there are AMD GPUs: it asks the kernel driver before it loads the plugin."""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "jax._src.hardware_utils":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec and spec.loader, "JAX has this module"
        execute = spec.loader.exec_module

        def execute_and_replace(module: Any) -> None:
            execute(module)
            module.num_available_amd_gpus = lambda stop_at=None: int(os.environ["TWIN_DEVICES"])

        spec.loader.exec_module = execute_and_replace
        return spec


if "TWIN_DEVICES" in os.environ:
    sys.meta_path.insert(0, _Finder())
