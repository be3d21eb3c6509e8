"""python -m eagle3_tools.bench: eagle3-bench where nothing is installed."""

import sys

from eagle3_tools.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
