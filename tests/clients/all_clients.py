"""Every client that is driven."""

from clients import (
    agents_client,
    anthropic_client,
    lm_eval_client,
    load_generators,
    locust_client,
    openai_client,
    serving_benchmarks,
)

CLIENTS = (
    *openai_client.CLIENTS,
    *agents_client.CLIENTS,
    *anthropic_client.CLIENTS,
    *lm_eval_client.CLIENTS,
    *locust_client.CLIENTS,
    *serving_benchmarks.CLIENTS,
    *load_generators.CLIENTS,
)
