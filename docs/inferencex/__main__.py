"""python -m docs.inferencex [FILE]: check a matrix and print its jobs, one command per line."""

import shlex
import sys
from pathlib import Path

from docs.inferencex.matrix import MATRIX, Job, jobs, read_matrix


def main(argv: list[str]) -> int:
    """Return the exit status: 0, or 2 for an invalid matrix."""
    try:
        for key, entry in read_matrix(Path(argv[0]) if argv else MATRIX).items():
            for job in jobs(key, entry):
                print(_command(job))
    except (OSError, ValueError) as error:
        print(f"docs.inferencex: error: {error}", file=sys.stderr)
        return 2
    return 0


def _command(job: Job) -> str:
    variables = (f"{name}={shlex.quote(value)}" for name, value in job.variables.items())
    return " ".join(["env", *variables, "bash", shlex.quote(str(job.launcher))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
