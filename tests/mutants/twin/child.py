"""Run a module with one fault in another: python -m mutants.twin.child FAULT MODULE ARGUMENTS."""

import runpy
import sys

from mutants.install import install
from mutants.twin.faults import faults


def main() -> None:
    """Install the fault, unless its name is empty, and run the module."""
    name, module, *arguments = sys.argv[1:]
    for row in (row for row in faults() if row.name == name):
        install(row.path, row.faulty_source())
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
