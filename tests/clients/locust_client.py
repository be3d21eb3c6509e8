"""locust: four users, each reading its answers to the end."""

import json
from pathlib import Path

from clients.client import Client, Counts, Server

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
USERS, REQUESTS = 4, 48
"""As the locustfile has them: importing it would patch this process."""


def command(server: Server, results: Path) -> list[str]:
    """The run time is a bound that a run does not reach."""
    argv = ["locust", "--headless", "--locustfile", str(LOCUSTFILE), "--host", server.url]
    argv += ["--users", str(USERS), "--spawn-rate", str(USERS), "--run-time", "10m"]
    return [*argv, "--json-file", "result"]


def read(results: Path) -> Counts:
    """Sums over the two endpoints; what was never asked has failed."""
    rows = json.loads((results / "result.json").read_text())
    completed = sum(row["num_requests"] - row["num_failures"] for row in rows)
    return Counts(completed, REQUESTS - completed)


CLIENTS = (Client("locust", "locust", "locust", command, read),)
