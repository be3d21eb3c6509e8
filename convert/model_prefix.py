"""Names of targets whose tensors lie under `model.`, but for the head."""


def without_model_prefix(name: str) -> str:
    """As rules have it; the prefix may be absent."""
    return name.removeprefix("model.")


def with_model_prefix(name: str) -> str:
    """The released spelling of a canonical name."""
    return name if name.startswith("lm_head.") else f"model.{name}"
