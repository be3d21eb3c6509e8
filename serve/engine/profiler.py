"""The interface of what traces an engine's devices."""

from typing import Protocol


class Profiler(Protocol):
    """What JAX's profiler does (`jax.profiler`)."""

    def start_trace(self, log_dir: str) -> None: ...
    def stop_trace(self) -> None: ...
