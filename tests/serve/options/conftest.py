"""Installed modules, as the flags see them."""

import pytest


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules that an engine by Ray finds."""
    names = {"ray", "zmq"}
    monkeypatch.setattr("serve.options.ray.find_spec", lambda n: n in names or None)
    return names
