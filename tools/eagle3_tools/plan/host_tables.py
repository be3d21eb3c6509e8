"""Terminal table of host memory below the KV cache."""

from rich.table import Table

from eagle3_tools.plan.model.host_memory import HostMemory
from serve.text_table import text_table


def host_table(host: HostMemory) -> Table:
    """Build a table of seconds to load prefixes and to compute them."""
    table = text_table(
        f"Host memory of {host.nbytes / 2**30:,.0f} GiB holds {host.tokens:,} tokens of "
        f"{host.token_bytes:,} B; a prefix from there, or run again in chunks of {host.chunk}; "
        "model, not measured",
        ("", "prefix", "GB", "load, one\nlink, ms", "all links\nms", "prefill\nms", "times"),
        left=("",),
    )
    for gpu, shapes in host.shapes.items():
        devices = shapes.target.parallel.devices
        name = f"{devices} x {gpu}"
        for tokens in host.prefixes:
            one, every = (host.load_s(tokens, links) for links in (1, devices))
            again = host.prefill_s(gpu, tokens)
            cells = (one * 1e3, every * 1e3, again * 1e3)
            size = f"{tokens * host.token_bytes / 1e9:.2f}"
            shown = (f"{cell:,.1f}" for cell in cells)
            table.add_row(name, f"{tokens:,}", size, *shown, f"{again / every:,.0f}")
            name = ""
        table.add_section()
    return table


def host_note(host: HostMemory, gpu: str) -> str:
    """Return the number of tokens from which loading pays."""
    return (
        f"{gpu}: loading pays from {host.least_tokens(gpu):,} tokens on "
        "(--kv-offloading-min-tokens), with a step's wait; model, not measured."
    )
