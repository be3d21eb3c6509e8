"""Parts of a body that a model reads as the client wrote them."""

from typing import Any, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, PrivateAttr, model_validator


class AsSent(BaseModel):
    """Keeps the object that it was read from.

    A dump has declared fields first, so that the prompt would depend on how a protocol declares its
    models.
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
        """The object, with its keys in the client's order."""
        return self._sent
