"""Every client that is driven."""

from clients import (
    load_generators,
    lm_eval_client,
    locust_client,
    openai_client,
    serving_benchmarks,
)

CLIENTS = (
    *openai_client.CLIENTS,
    *lm_eval_client.CLIENTS,
    *locust_client.CLIENTS,
    *serving_benchmarks.CLIENTS,
    *load_generators.CLIENTS,
)
