"""eagle3-serve on the simulated device: it loads its pair and compiles nothing."""

from collections.abc import Sequence
from unittest.mock import patch

from simulated_device import SimulatedRunner

from eagle3_jax.engine import EngineConfig
from serve import cli


class ServedRunner(SimulatedRunner):
    """With pages as large as the rows of a served prompt, and no notice of grammars and images."""

    page_bytes = 1 << 16

    def __init__(
        self, target: object, draft: object, config: EngineConfig, *, peers: object, **_: object
    ) -> None:
        super().__init__(target, draft, config, has_grammars=False, peers=peers)


def main(argv: Sequence[str]) -> int:
    """argv: eagle3-serve's flags."""
    with patch("eagle3_jax.engine.engine.Runner", ServedRunner):
        return cli.main(argv)
