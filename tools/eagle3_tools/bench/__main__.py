"""python -m serve.bench: eagle3-bench where nothing is installed."""

import sys

from serve.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
