"""HTTP endpoints for the served model under its names: GET /v1/models."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from serve.openai.service import Service


class ModelCard(BaseModel):
    """One entry of GET /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "eagle3-jax"
    root: str
    max_model_len: int
    input_modalities: list[Literal["text", "image"]]


class ModelList(BaseModel):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def models_router(service: Service) -> APIRouter:
    router, model = APIRouter(), service.model

    def card(name: str) -> ModelCard:
        return ModelCard(
            id=name,
            created=model.created,
            root=model.root,
            max_model_len=model.max_model_len,
            input_modalities=["text", "image"] if service.images.takes else ["text"],
        )

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        return ModelList(data=[card(name) for name in model.names])

    # A name may contain slashes, like hub ids.
    @router.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> ModelCard:
        service.check_model(name)
        return card(name)

    return router
