"""Check one kernel of the embedded pair on four devices, as `eagle3-bench doctor` does."""

import json
import sys

from eagle3_tools.bench.doctor.kernels import KernelJob, kernel_findings
from eagle3_tools.bench.doctor.served import Served
from serve.demo import demo_draft_dir, demo_target_dir

DEVICES = 4
MOST_BYTES = 64 << 20
CHECKED = "add_norm"


def main() -> int:
    """Print the verdict on each device's kernel."""
    _, calls = Served(demo_target_dir(), demo_draft_dir(), 1)()
    call = next(call for call in calls if call.operation == CHECKED)
    checked = KernelJob(call, tuple(range(DEVICES)), MOST_BYTES)()
    print(json.dumps({"verdicts": [finding.verdict for finding in kernel_findings(checked)]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
