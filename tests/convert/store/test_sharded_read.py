"""Loading onto a mesh reads every byte about once, not once a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from small_stores import ORIGIN, parameters, source_directory

from convert.store.writer import write_store

DEVICES = 8


def test_eight_devices_read_little_more_than_their_own_slices(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    values = {
        "mlp.kernel": noise.integers(0, 256, (8192, 4096), np.uint8),
        "mlp.experts.values": noise.integers(0, 256, (16, 512, 512), np.uint8),
    }
    write_store(
        tmp_path / "made", parameters(values), ORIGIN, side_files=source_directory(tmp_path)
    )
    wanted = [("mlp.kernel", 0), ("mlp.kernel", 1), ("mlp.experts.values", 0)]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    script = Path(__file__).with_name("sharded_read.py")
    command = [sys.executable, str(script), str(tmp_path / "made"), json.dumps(wanted)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    for share, devices, as_asked, equal in json.loads(output.stdout):
        assert as_asked and equal and devices == DEVICES
        assert 1 <= share < 1.5
