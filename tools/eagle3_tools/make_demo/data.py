"""Write data of the embedded pairs to files."""

import argparse
import json
from itertools import chain, islice

from eagle3_tools.make_demo.corpus import CATEGORIES, held_out_prompts
from eagle3_tools.make_demo.pictures.questions import FILE, write_questions
from eagle3_tools.make_demo.recipe import conversation


def write_corpus(options: argparse.Namespace) -> bool:
    """Write conversations as lines of JSON; held-out ones are as many of each category."""
    count = options.conversations
    if options.held_out:
        each = -(-count // len(CATEGORIES))
        found = chain.from_iterable(held_out_prompts(name, each) for name in CATEGORIES)
    else:
        found = (conversation(options.seed, index) for index in range(count))
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with options.file.open("w", encoding="utf-8") as file:
        for one in islice(found, count):
            tools = {"tools": one.tools} if one.tools else {}
            file.write(f"{json.dumps({'messages': one.messages, **tools})}\n")
    return True


def write_pictures(options: argparse.Namespace) -> bool:
    """Write a directory that `eagle3-bench accept --data` can read."""
    write_questions(options.directory, options.count, options.seed)
    print(f"{options.count} pictures and questions: {options.directory / FILE}")
    return True
