"""locust: four users for a fixed time, each reading its answers to the end."""

import json
from pathlib import Path

from clients.client import Client, Counts, Server

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def command(server: Server, results: Path) -> list[str]:
    """Users who are reading when the time is over may finish."""
    argv = ["locust", "--headless", "--locustfile", str(LOCUSTFILE), "--host", server.url]
    argv += ["--users", "4", "--spawn-rate", "4", "--run-time", "5s", "--stop-timeout", "20"]
    return [*argv, "--json-file", "result"]


def read(results: Path) -> Counts:
    """Sums over the two endpoints."""
    rows = json.loads((results / "result.json").read_text())
    failed = sum(row["num_failures"] for row in rows)
    return Counts(sum(row["num_requests"] for row in rows) - failed, failed)


CLIENTS = (Client("locust", "locust", "locust", command, read),)
