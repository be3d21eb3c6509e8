"""Makes the calls that another process's runner sends, and answers what it asks about them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from eagle3_jax.engine.programs.executor import Executor
from eagle3_jax.engine.programs.processes.call import ProgramCall
from eagle3_jax.engine.programs.processes.questions import About, Asked, slots_of, to_bytes

Answer = Callable[[bytes | Exception], object]


def follow(
    executor: Executor,
    decode: Callable[[bytes], ProgramCall],
    messages: Iterable[bytes | Asked],
) -> None:
    """Runs calls and answers questions until there are no more; ValueError for what can't have been
    sent.

    Waits for each program behind the next one's dispatch, as whoever reads its report does. Who
    is asked does not: the questions set its pace, and some of them can't wait for a program.
    """
    outputs: tuple[Any, ...] = ()
    is_asked = False
    # One thread reads outputs in their order, each as soon as its program has ended.
    reading = ThreadPoolExecutor(1, "reads outputs")
    try:
        for message in messages:
            if isinstance(message, Asked):
                is_asked = True
                _answer(message, executor, outputs, reading)
                continue
            before, outputs = outputs, executor.run(decode(message))
            if not is_asked:
                jax.block_until_ready(before)
    finally:
        reading.shutdown(wait=False)  # A program that lacks a peer never ends.


def _answer(
    asked: Asked, executor: Executor, outputs: tuple[Any, ...], reading: ThreadPoolExecutor
) -> None:
    about = About(asked.question[0])
    if about is About.OUTPUT:
        output = jax.tree.leaves(outputs)[asked.question[1]]
        output.copy_to_host_async()
        reading.submit(_read, output, asked.answer)
    elif about in (About.START_TRACE, About.STOP_TRACE):
        asked.answer(_trace(about, asked.question[1:].decode()).encode())
    else:
        slots, pages = slots_of(asked.question), executor.pages
        ask = pages.are_saved if about is About.SAVED_PAGES else pages.are_staged
        asked.answer(bytes((ask(slots),)))


def _trace(about: About, directory: str) -> str:
    """What went wrong, if anything did: no reason to end."""
    try:
        if about is About.START_TRACE:
            jax.profiler.start_trace(directory)
        else:
            jax.profiler.stop_trace()
    except (OSError, RuntimeError, ValueError) as error:
        return f"{error}"
    return ""


def _read(output: jax.Array, answer: Answer) -> None:
    try:
        answer(to_bytes(np.asarray(output)))
    except Exception as error:  # In this thread nobody would hear of it.
        answer(error)
