"""Output items of responses: the same however an answer is cut into outputs."""

from itertools import count
from typing import Any

import pytest
from chat_tokenizers import TOKENIZERS
from cut_answers import SCHEMAS, Answer, outputs, parser, token_streams
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.responses.output import Output


def read(name: str, answers: list[Answer]) -> list[dict[str, Any]]:
    """The items of an answer that comes so."""
    reader, output = parser(TOKENIZERS[name](), schemas=SCHEMAS), Output("run", seals=False)
    for number, (token_ids, text) in enumerate(answers):
        for parts in reader.take_each(token_ids, text, final=number == len(answers) - 1):
            list(output.take(parts, []))
    list(output.end("completed"))
    return output.items


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_items_depend_on_no_cut(name: str, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1))
    cuts = (sizes[i % len(sizes)] for i in count())
    answers = outputs(TOKENIZERS[name](), data.draw(token_streams(name)), cuts)
    joined = (tuple(i for ids, _ in answers for i in ids), "".join(text for _, text in answers))
    assert read(name, [joined]) == read(name, answers)
