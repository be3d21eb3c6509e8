"""Request models that refuse unknown fields by name."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

CacheControl = dict[str, Any] | None
"""Accepted without effect: every full page of a prompt is cached and shared anyway."""

Neutral = Mapping[str, tuple[object, ...]]
"""Fields that are not implemented, with the values that change nothing."""


class KnownFields(BaseModel):
    """A body or a part of one, whose unknown fields are refused."""

    model_config = ConfigDict(allow_inf_nan=False)
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, given: Any) -> Any:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name in given if isinstance(given, dict) else ():
            if name not in known and given[name] not in cls.neutral.get(name, ()):
                raise refused(name[:200], "leave it out")
        return given


def refused(what: str, instead: str) -> PydanticCustomError:
    """Return the error that a validator raises for an unsupported feature."""
    message = "{param} is not implemented in this release; {instead}"
    return PydanticCustomError("unsupported_option", message, {"param": what, "instead": instead})


def only(where: str, kinds: tuple[str, ...], instead: str) -> BeforeValidator:
    """Return a validator that refuses list entries of another `type`, by its name."""

    def check(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise refused(f"{where} of type {kind[:200]!r}", instead)
        return part

    return BeforeValidator(check)
