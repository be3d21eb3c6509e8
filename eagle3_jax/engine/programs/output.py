"""Program outputs as the host reads them."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from eagle3_jax.engine.logprob_rows import LogprobRows
from eagle3_jax.sampling.logprobs import Logprobs


class ProgramOutput(NamedTuple):
    """Outputs of a dispatched program: one report per row, and logprobs if requested.

    `places` holds the row of each sequence.
    """

    rows: jax.Array
    logprobs: Logprobs | None
    places: Sequence[int]


class RowReport(NamedTuple):
    """Tokens that one program committed for one sequence, and the drafts it verified.

    `logprobs` are those of the tokens, `prompt_logprobs` those of the token after each chunk row.
    """

    token_ids: list[int]
    verified: int
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None


def read_output(output: ProgramOutput) -> list[RowReport]:
    """Wait for a program and read the outputs of its sequences.

    This is a round's only device-to-host transfer if logprobs are not requested. A prefill reports
    [token, committed], a round of k drafts [k+1 tokens, committed, verified].
    """
    rows, logprobs = jax.device_get((output.rows, output.logprobs))
    if rows.ndim > 2:  # outputs of all replicas
        rows, logprobs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, logprobs))
    report = _prefill_report if rows.shape[1] == 2 else _round_report
    reports = [report(rows[place]) for place in output.places]
    return _with_logprobs(reports, output.places, logprobs) if logprobs else reports


def _prefill_report(row: np.ndarray) -> RowReport:
    return RowReport(row[: row[1]].tolist(), 0)


def _round_report(row: np.ndarray) -> RowReport:
    return RowReport(row[: row[-2]].tolist(), int(row[-1]))


def _with_logprobs(
    reports: list[RowReport], places: Sequence[int], logprobs: Logprobs
) -> list[RowReport]:
    """Add the rows' logprobs to the reports."""

    def of_row(row: int) -> list[LogprobRows | None]:
        return [scored and LogprobRows.of_row(scored, row) for scored in logprobs]

    pairs = zip(reports, places, strict=True)
    return [RowReport(*report[:2], *of_row(place)) for report, place in pairs]
