"""Interface of a profiler of the engine's devices."""

from typing import Protocol


class Profiler(Protocol):
    """Interface of JAX's profiler (`jax.profiler`)."""

    def start_trace(self, log_dir: str) -> None: ...
    def stop_trace(self) -> None: ...
