"""Run the command: concurrent conversations, with progress."""

import argparse
import asyncio
from collections.abc import Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from serve.train.data import HubRecords, JsonLines, open_records
from serve.train.regenerate.answers_file import AnswersFile
from serve.train.regenerate.asking import Asking


def regenerate(options: argparse.Namespace) -> bool:
    """Ask `options.url`, and write its answers to `options.output`; False if interrupted."""
    records = open_records(options.data, options.split)
    with AnswersFile(options.output, records, resume=options.resume) as file:
        try:
            asyncio.run(_ask_all(options, records, file))
        except KeyboardInterrupt:
            return False
        print(file.summary)
        if not file.answers:
            raise ValueError(f"{options.output}: no conversation was answered")
    return True


async def _ask_all(
    options: argparse.Namespace, records: JsonLines | HubRecords, file: AnswersFile
) -> None:
    count = min(len(records), options.conversations or len(records))
    waiting = [index for index in range(count) if index not in file.done]
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("{task.description}")) as progress:
        task = progress.add_task(file.summary, total=count, completed=count - len(waiting))
        turns = iter(waiting)

        async def work(asking: Asking, turns: Iterator[int]) -> None:
            for index in turns:  # shared: each worker takes the next
                messages, tools = _conversation(records, index)
                file.write(index, await asking.converse(index, messages, tools), tools)
                progress.update(task, advance=1, description=file.summary)

        async with Asking.of(options) as asking:
            await asyncio.gather(*(work(asking, turns) for _ in range(options.concurrency)))


def _conversation(records: JsonLines | HubRecords, index: int) -> tuple[list, list]:
    record = records[index]
    try:
        messages, tools = record["messages"], record.get("tools") or []
        if all(isinstance(message["role"], str) for message in messages):
            return list(messages), list(tools)
    except (KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{records.place(index)}: expected an object with `messages`")
