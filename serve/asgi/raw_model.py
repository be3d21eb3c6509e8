"""Body parts that are passed to the model exactly as the client wrote them."""

from typing import Any, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, PrivateAttr, model_validator


class RawPreservingModel(BaseModel):
    """Model that keeps the object it was parsed from.

    A dump orders keys by field declaration, so that the prompt would depend on the Python class.
    """

    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        part = read(given)
        if isinstance(given, dict):
            part._sent = given
        return part

    @property
    def sent(self) -> dict[str, Any]:
        """The parsed object, with its keys in the client's order."""
        return self._sent
