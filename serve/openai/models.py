"""HTTP endpoints for the served model under its names: GET /v1/models."""

from fastapi import APIRouter

from serve.openai.chat_message import ModelCard, ModelList
from serve.openai.service import Service


def models_router(service: Service) -> APIRouter:
    """Return the endpoints over `service`."""
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
