"""python -m eagle3_tools.bench: run `eagle3-bench` without an installed script."""

import sys

from eagle3_tools.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
