"""Execution of calls from another process's runner, and answers to its questions."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from eagle3_jax.engine.programs.executor import Executor
from eagle3_jax.engine.programs.messages import (
    PendingQuery,
    ProgramCall,
    QueryKind,
    queried_slots,
    to_bytes,
)

Answer = Callable[[bytes | Exception], object]


def follow(
    executor: Executor,
    decode: Callable[[bytes], ProgramCall],
    messages: Iterable[bytes | PendingQuery],
) -> None:
    """Run calls and answer questions until there are no more.

    Waits for each program after the next one's dispatch, like a reader of its report. A process
    that is asked does not wait: the questions set its pace, and some cannot wait for a program.
    Raises ValueError for messages that the runner cannot have sent.
    """
    outputs: tuple[Any, ...] = ()
    is_asked = False
    # One thread reads outputs in order, each as soon as its program ends.
    reading = ThreadPoolExecutor(1, "reads outputs")
    try:
        for message in messages:
            if isinstance(message, PendingQuery):
                is_asked = True
                _answer(message, executor, outputs, reading)
                continue
            before, outputs = outputs, executor.run(decode(message))
            if not is_asked:
                jax.block_until_ready(before)
    finally:
        reading.shutdown(wait=False)  # A program that lacks a peer never ends.


def _answer(
    asked: PendingQuery, executor: Executor, outputs: tuple[Any, ...], reading: ThreadPoolExecutor
) -> None:
    about = QueryKind(asked.question[0])
    if about is QueryKind.OUTPUT:
        output = jax.tree.leaves(outputs)[asked.question[1]]
        output.copy_to_host_async()
        reading.submit(_read, output, asked.answer)
    elif about in (QueryKind.START_TRACE, QueryKind.STOP_TRACE):
        asked.answer(_trace(about, asked.question[1:].decode()).encode())
    else:
        slots, pages = queried_slots(asked.question), executor.pages
        ask = pages.are_saved if about is QueryKind.SAVED_PAGES else pages.are_staged
        asked.answer(bytes((ask(slots),)))


def _trace(about: QueryKind, directory: str) -> str:
    """Start or stop a trace; return the error if any, which is not fatal."""
    try:
        if about is QueryKind.START_TRACE:
            jax.profiler.start_trace(directory)
        else:
            jax.profiler.stop_trace()
    except (OSError, RuntimeError, ValueError) as error:
        return f"{error}"
    return ""


def _read(output: jax.Array, answer: Answer) -> None:
    try:
        answer(to_bytes(np.asarray(output)))
    except Exception as error:  # In this thread it would be lost.
        answer(error)
