"""A pytest plugin that ends a run when one of its worker processes is lost."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Do not replace a lost worker.

    xdist would give the new worker the rest of the lost worker's group. If that is one test, the
    worker waits forever for the next one.
    """
    if hasattr(config.option, "maxworkerrestart"):  # The option exists only with xdist.
        config.option.maxworkerrestart = "0"
