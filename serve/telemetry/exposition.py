"""Renders metrics in Prometheus text format, with plain decimals.

prometheus_client writes a counter of a million as `1e+06`. Collectors that read only digits and
dots parse that as 1. Here integers stay integers and no number has an exponent.
"""

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(registry: CollectorRegistry) -> str:
    """Return all metrics of the registry in text format 0.0.4, without `_created` series."""
    return "".join(_render_metric(metric) for metric in registry.collect())


def _render_metric(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    lines = [f"# HELP {name} {metric.documentation}", f"# TYPE {name} {metric.type}"]
    samples = (s for s in metric.samples if not s.name.endswith("_created"))
    lines += [_render_sample(sample) for sample in samples]
    return "\n".join(lines) + "\n"


def _render_sample(sample: Sample) -> str:
    labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {_decimal(sample.value)}"


def _decimal(value: float) -> str:
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
