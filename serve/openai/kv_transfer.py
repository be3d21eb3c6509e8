"""The field kv_transfer_params of bodies and answers, as routers know it from vLLM."""

import logging
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from eagle3_jax.engine import Request
from serve.asgi.errors import invalid_request
from serve.kv_transfer.config import as_address
from serve.kv_transfer.consumer import RemotePrompt
from serve.kv_transfer.transfers import Transfers

logger = logging.getLogger(__name__)
NAME = "kv_transfer_params"
MOST_PAGES = 2**17


class KVTransferParams(BaseModel):
    """A router's description of a prompt's pages. Unknown fields are ignored, as everywhere."""

    model_config = ConfigDict(extra="ignore")

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: str | None = Field(None, max_length=256)
    remote_request_id: str | None = Field(None, max_length=64)
    remote_block_ids: list[int] | None = Field(None, max_length=MOST_PAGES)
    remote_host: str | None = Field(None, max_length=256)
    remote_port: int | None = Field(None, ge=1, le=65535)
    remote_last_key: str | None = Field(None, pattern="^[0-9a-f]{64}$")

    @property
    def prompt(self) -> RemotePrompt | None:
        """The prompt that a producer retains, or None if a field is missing."""
        host, port, name = self.remote_host, self.remote_port, self.remote_request_id
        blocks, last = self.remote_block_ids, self.remote_last_key
        if host is None or port is None or name is None or blocks is None or last is None:
            return None
        return RemotePrompt(*as_address(host, port), name, len(blocks), bytes.fromhex(last))


def with_transfer(
    params: KVTransferParams | None, transfers: Transfers | None, requests: Sequence[Request]
) -> tuple[Request, ...]:
    """Return the requests with the transfers that the field asks for.

    Raises 400 where this server's role or the body rules it out. Missing pages cost a prefill.
    """
    wanted = params and (params.do_remote_decode or params.do_remote_prefill)
    if params is None or not wanted:
        return tuple(requests)
    if transfers is None:
        raise _refused("this server takes no part in transfers: start it with --kv-role")
    if params.do_remote_decode and params.do_remote_prefill:
        raise _refused("do_remote_decode and do_remote_prefill exclude each other")
    if len(requests) != 1 or requests[0].sampling.prompt_logprobs is not None:
        raise _refused("is for one prompt with n = 1, and without logprobs of the prompt")
    request = requests[0]
    if params.do_remote_decode:
        if not transfers.config.produces:
            raise _refused("do_remote_decode: this server is a consumer (--kv-role)")
        return (transfers.exported(request),)
    if not transfers.config.consumes:
        raise _refused("do_remote_prefill: this server is a producer (--kv-role)")
    if params.prompt is None:
        logger.warning("%s are not of a producer of this engine: the prompt is run here", NAME)
        return (request,)
    if (address := params.prompt.address) not in transfers.config.producers:
        raise _refused(
            f"remote_host {address[0]!r} and remote_port {address[1]} are no producer that this "
            "server takes pages from: name it as HOST:PORT in --kv-transfer-config, "
            "kv_connector_extra_config producers"
        )
    return (transfers.fetched(request, params.prompt),)


def _refused(message: str) -> Exception:
    return invalid_request(f"{NAME}: {message}", param=NAME, code="unsupported_option")
