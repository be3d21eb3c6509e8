"""A router of vLLM's protocol as a process of its own, which prints its port.

    python small_router.py PRODUCER_URL CONSUMER_URL

Prompts go to the producer, and with what it says of their pages to the consumer, which alone
answers where the producer doesn't.
"""

import json
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

PRODUCER, CONSUMER = sys.argv[1:]
WISH = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
ONE = {"max_tokens": 1, "stream": False, "kv_transfer_params": WISH}
TIMEOUT_S = 60.0


class Router(BaseHTTPRequestHandler):
    """Takes whole answers alone."""

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with suppress(httpx.HTTPError):
            first = httpx.post(PRODUCER + self.path, json=body | ONE, timeout=TIMEOUT_S)
            params = first.raise_for_status().json().get("kv_transfer_params")
            body |= {"kv_transfer_params": params} if params else {}
        try:
            answer = httpx.post(CONSUMER + self.path, json=body, timeout=TIMEOUT_S)
            status, content = answer.status_code, answer.content
        except httpx.HTTPError as error:
            status, content = 502, repr(error).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("content-length", f"{len(content)}")
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
