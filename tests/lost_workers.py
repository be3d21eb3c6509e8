"""A pytest plugin that ends a run when a worker process is lost."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start no worker in place of a lost one.

    xdist gives it what is left of the lost worker's group. If that is one test, the new worker
    waits for ever for the test after it.
    """
    if hasattr(config.option, "maxworkerrestart"):  # xdist is not installed everywhere.
        config.option.maxworkerrestart = "0"
