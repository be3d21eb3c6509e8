import pytest


@pytest.fixture
def no_jaxtyping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not checked, as for users: errors are those of the operations themselves."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
