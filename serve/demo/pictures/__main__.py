"""Draw pictures with questions about them that the embedded vision pair was not trained on."""

import argparse
from pathlib import Path

from serve.demo.pictures.questions import FILE, write_questions


def main() -> None:
    """Write a directory that `eagle3-bench accept --data` can read."""
    parser = argparse.ArgumentParser(prog="python -P -m serve.demo.pictures", description=__doc__)
    parser.add_argument("directory", type=Path, help="where images and questions are to be")
    parser.add_argument("--count", type=int, default=20, help="of pictures (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="other pictures")
    options = parser.parse_args()
    write_questions(options.directory, options.count, options.seed)
    print(f"{options.count} pictures and questions: {options.directory / FILE}")


if __name__ == "__main__":
    main()
