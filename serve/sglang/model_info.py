"""HTTP endpoints that describe the server (SGLang's names) and its load (vLLM's)."""

from typing import Any

from fastapi import APIRouter

from serve.openai.service import Service


def model_info_router(service: Service, version: str) -> APIRouter:
    """The endpoints; those that begin with get_ are the older names."""
    router, model = APIRouter(), service.model
    paths = {"model_path": model.root, "tokenizer_path": model.root}

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {**paths, "is_generation": True, "has_image_understanding": False}

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        """avg_spec_accept_length counts the bonus token, over all rounds since the start."""
        stats = service.engine.stats
        state = {
            "avg_spec_accept_length": stats.accept_length,
            "num_running_reqs": stats.num_running,
            "num_waiting_reqs": stats.num_waiting,
        }
        return {
            **paths,
            "served_model_name": model.names[0],
            "context_length": model.max_model_len,
            "speculative_num_steps": stats.num_speculative_tokens,
            "version": version,
            "internal_states": [state],
        }

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Sequences that run or wait."""
        stats = service.engine.stats
        return {"server_load": stats.num_running + stats.num_waiting}

    return router
