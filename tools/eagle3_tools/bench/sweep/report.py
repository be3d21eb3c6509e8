"""Results of sweeps as a self-contained HTML page, with its figures as files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from eagle3_tools.bench.sweep.plots import figures, inline_svg, save
from eagle3_tools.bench.sweep.rows import SPEED, SPOKEN, SYNTHETIC, Columns, Row, rows_of

CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 62rem; margin: 2.5rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, dd { color: #444; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th { font-weight: 600; text-align: right; border-bottom: 2px solid #1b1b1b; }
td { text-align: right; border-bottom: 1px solid #e4e4e4; }
th, td { padding: .25rem .7rem; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.first td { border-top: 1px solid #999; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .88rem; }
dt { font-weight: 600; } dd { margin: 0; }
svg { max-width: 100%; height: auto; }
figure { margin: 1rem 0; }
.warning { border-left: 4px solid #d55e00; background: #fff4ec; padding: .5rem .8rem;
  color: #1b1b1b; }
.wide { overflow-x: auto; }
"""
MEANING = (
    "output_tput_per_gpu: answer tokens a second and GPU. tput_per_gpu: prompt and answer tokens. "
    "TTFT: to the first token, TPOT: per token after it, E2EL: to the last one; medians over seeds "
    "of each run's median over requests. Accept length is 1 + accepted / drafts and, like the "
    "shares by position, that of this workload only: random text says nothing of real text. Few "
    "distinct bigrams mean a model that repeats itself."
)


def read_results(directories: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Read all results in the directories; raise ValueError if there is none or a bad file."""
    files = [path for place in directories for path in sorted(Path(place).glob("*_seed*.json"))]
    if not files:
        raise ValueError("no results: name directories that eagle3-bench sweep has written to")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    for path, result in zip(files, results, strict=True):
        if "eagle3" not in result:
            raise ValueError(f"{path} is no result of eagle3-bench sweep")
    return sorted(results, key=_order)


def _order(result: Mapping[str, Any]) -> tuple[float, ...]:
    load = result["eagle3"]["workload"]
    # In the order of the runs, which alternates configurations at one load.
    started = result["benchmark_start_time_unix"]
    return load["isl"], load["osl"], result["max_concurrency"], started


def write_report(results: Sequence[Mapping[str, Any]], into: Path) -> Path:
    """Write report.html and every figure as PNG and SVG; return the path of the page."""
    rows = rows_of(results)
    drawn = figures(rows)
    into.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        save(figure, into / name)
    page = into / "report.html"
    page.write_text(_page(results, rows, [inline_svg(f) for f in drawn.values()]), encoding="utf-8")
    return page


def _page(results: Sequence[Mapping[str, Any]], rows: Sequence[Row], drawn: Sequence[str]) -> str:
    models = ", ".join(dict.fromkeys(result["model_id"] for result in results))
    failed = sum(row.failed for row in rows)
    parts = [
        f"<h1>{escape(models)}</h1><p>Throughput and latency, {len(results)} runs.</p>",
        _warning(f"{failed} requests failed.") if failed else "",
        _warning(SYNTHETIC.removeprefix("* ")) if any(row.synthetic for row in rows) else "",
        *(f"<figure>{svg}</figure>" for svg in drawn),
        "<h2>Speed</h2>",
        _table(SPEED, rows),
        "<h2>Acceptance and diversity</h2>",
        _table(SPOKEN, rows),
        f"<p>{escape(MEANING)}</p><h2>Conditions</h2>",
        _conditions(results),
    ]
    head = f'<meta charset="utf-8"><title>{escape(models)}</title><style>{CSS}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _warning(text: str) -> str:
    return f'<p class="warning">{escape(text[0].upper() + text[1:])}</p>'


def _table(columns: Columns, rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines, last = [], None
    for row in rows:
        where = (row.isl, row.osl, row.concurrency)
        mark = "" if where == last else ' class="first"'
        cells = "".join(f"<td>{escape(cell(row))}</td>" for cell in columns.values())
        lines.append(f"<tr{mark}>{cells}</tr>")
        last = where
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _conditions(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the conditions of the runs as HTML; where they differ, all values."""
    ours = [result["eagle3"] for result in results]
    taken = [o["conditions"] for o in ours]
    facts = {
        "device": [o["device"] for o in ours],
        "GPUs": [o["gpus"] for o in ours],
        "server": [f"{o['configuration']}: {o['server']}" for o in ours],
        "sampling": [_sampling(o["workload"]) for o in ours],
        "seeds": [o["seed"] for o in ours],
        "arrivals": [_arrivals(result) for result in results],
        "client": [f"{t['cpu']}, {t['system']}, Python {t['python']}" for t in taken],
        "versions": [", ".join(f"{k} {v}" for k, v in t["versions"].items()) for t in taken],
        "load average at the start": [t["load_average"] for t in taken],
        "date": [t["date"] for t in taken],
    }
    lines = []
    for name, values in facts.items():
        shown = "; ".join(escape(f"{value}") for value in dict.fromkeys(values))
        lines.append(f"<dt>{escape(name)}</dt><dd>{shown}</dd>")
    return f"<dl>{''.join(lines)}</dl>"


def _sampling(workload: Mapping[str, Any]) -> str:
    template = "chat template" if workload["chat_template"] else "no chat template"
    return f"{workload['sampling']}, range ratio {workload['range_ratio']:g}, {template}"


def _arrivals(result: Mapping[str, Any]) -> str:
    rate = result["request_rate"]
    each = result["num_prompts"] // result["max_concurrency"]
    when = "all at once" if rate == "inf" else f"{rate:g} a second"
    return f"{each} requests a client, {when}"
