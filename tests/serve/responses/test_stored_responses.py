"""Responses that are kept: retrieved, listed, gone on from and deleted, by their own key alone."""

import json
import re
from typing import Any

import openai
import pytest
from called_tools import ANSWERS, THINKING
from called_tools import RESPONSE_TOOLS as TOOLS
from fake_engine import FakeEngine
from fake_server import Served
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from serve.options.operations import Operations

CALL_ID = "functions.weather:0"
KEYS = ("first", "second")
FOLLOW_UPS: list[dict[str, Any]] = [{}, {"store": False}, {"instructions": "Be brief."}]


@pytest.fixture(scope="module")
def client(fake: Served) -> openai.OpenAI:
    return fake.openai.with_options(api_key="of this module")


def create(client: openai.OpenAI, **given: Any) -> Any:
    return client.responses.create(
        **{"model": "fake", "input": "hello", "max_output_tokens": 4, **given}
    )


def test_a_response_is_retrieved_as_it_was_created_until_it_is_deleted(
    client: openai.OpenAI,
) -> None:
    answer = create(client)
    assert client.responses.retrieve(answer.id).model_dump() == answer.model_dump()
    client.responses.delete(answer.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            call(answer.id)
        assert caught.value.code == "response_not_found"
    *_, last = create(client, stream=True)
    assert client.responses.retrieve(last.response.id).model_dump() == last.response.model_dump()


def test_metrics_count_what_is_stored_and_what_a_conversation_retains(serve) -> None:
    server = serve(FakeEngine())

    def stored() -> list[float]:
        text = server.http.get("/metrics").text
        return [float(n) for n in re.findall(r"(?m)^eagle3:stored_response\w+{.*} (.+)$", text)]

    assert stored() == [0, 0]
    first = create(server.openai)
    second = create(server.openai, previous_response_id=first.id)
    (count, size), _ = stored(), server.openai.responses.delete(first.id)
    fewer, retained = stored()
    assert (count, fewer) == (2, 1) and 0 < retained == size
    server.openai.responses.delete(second.id)
    assert stored() == [0, 0]


def test_what_was_not_to_be_stored_is_not(client: openai.OpenAI) -> None:
    answer = create(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        create(client, previous_response_id=answer.id)


@pytest.mark.parametrize("with_keys", [True, False])
def test_another_keys_response_is_not_there(serve, with_keys: bool) -> None:
    """Nor does the answer say that it is there for another."""
    server = serve(FakeEngine(), operations=Operations(api_keys=KEYS if with_keys else ()))
    first, second = (server.openai.with_options(api_key=key) for key in KEYS)
    answer = create(first)
    item = {"type": "item_reference", "id": answer.output[0].id}
    attempts = (
        lambda client, name: client.responses.retrieve(name),
        lambda client, name: client.responses.delete(name),
        lambda client, name: client.responses.input_items.list(name),
        lambda client, name: create(client, previous_response_id=name),
        lambda client, _: create(client, input=[item]),
    )
    for attempt in attempts:
        told = []
        for client, name in ((second, answer.id), (first, "resp_" + "0" * len(answer.id[5:]))):
            if attempt is attempts[-1] and client is first:
                continue
            with pytest.raises(openai.NotFoundError) as caught:
                attempt(client, name)
            told.append(caught.value.message.replace(name, "ID"))
        assert len(set(told)) == 1
    assert first.responses.retrieve(answer.id).id == answer.id
    assert create(first, previous_response_id=answer.id)
    assert create(first, input=[item, {"role": "user", "content": "and?"}])
    for name in ("a", "b") if with_keys else ():  # A key is one client beside any other header.
        shown = first.with_options(default_headers={"x-api-key": name})
        assert shown.responses.retrieve(answer.id).id == answer.id


@pytest.mark.parametrize("named", ["item_reference", "previous_response_id"])
def test_stored_items_count_as_if_the_body_had_them(serve, named: str) -> None:
    """They count once for each name, before an item is built or a prompt is made."""
    operations = Operations(max_body_bytes=2**18)
    client = serve(FakeEngine(), operations=operations).openai
    answer = create(client, input="a" * 200, max_output_tokens=50)
    if named == "item_reference":
        name = {"id": answer.output[0].id}
        most = 2**18 // (len(json.dumps(name)) + len(answer.output[0].model_dump_json()))
        with pytest.raises(openai.BadRequestError, match="context length"):
            create(client, input=[name] * (most // 2))
        given: dict[str, Any] = {"input": [name] * (2 * most)}
    else:
        given = {named: answer.id, "extra_body": {"unknown": "a" * (2**18 - 300)}}
    with pytest.raises(openai.BadRequestError, match=r"--max-body-size") as caught:
        create(client, **given)
    assert caught.value.param == ("input" if "input" in given else named)


@pytest.mark.parametrize("more", FOLLOW_UPS)
def test_a_chain_is_the_conversation_it_stands_for(say, more: dict[str, Any]) -> None:
    """Its prompt is that of a client that keeps the history itself; instructions don't carry."""
    server = say(ANSWERS["kimi_k2"])
    client, options = server.openai, {"tools": TOOLS, "extra_body": THINKING}
    output = {"type": "function_call_output", "call_id": CALL_ID, "output": "5 degrees"}
    question = {"role": "user", "content": "And Bergen?"}
    first = create(client, max_output_tokens=None, instructions="Be long.", **options)
    options["max_output_tokens"] = None
    second = create(client, previous_response_id=first.id, input=[output], **options)
    third = create(client, previous_response_id=second.id, input=[question], **options, **more)
    assert third.previous_response_id == second.id
    history = [{"role": "user", "content": "hello"}, *first.output, output, *second.output]
    create(client, input=[*history, question], **options, **more)
    chained, whole = server.engine.asked[-2:]
    assert chained.prompt_ids == whole.prompt_ids
    assert "Be long." not in server.engine.tokenizer.decode(chained.prompt_ids)


def test_references_stand_for_stored_items(say) -> None:
    server = say(ANSWERS["kimi_k2"])
    first = create(server.openai, tools=TOOLS, extra_body=THINKING, max_output_tokens=None)
    question = {"role": "user", "content": "hello"}
    names = [{"type": "item_reference", "id": item.id} for item in first.output]
    for items in (names, first.output):
        create(server.openai, input=[question, *items], tools=TOOLS)
    by_name, whole = server.engine.asked[-2:]
    assert by_name.prompt_ids == whole.prompt_ids
    with pytest.raises(openai.NotFoundError, match="there is no item"):
        create(server.openai, input=[{"id": f"{first.output[0].id}9"}])


def test_input_items_are_listed_page_by_page(say) -> None:
    server = say(ANSWERS["kimi_k2"])
    client, options = server.openai, {"tools": TOOLS, "extra_body": THINKING}
    first = create(client, max_output_tokens=None, **options)
    more = [{"type": "function_call_output", "call_id": CALL_ID, "output": "5 degrees"}]
    more += [{"role": "assistant", "content": "Cold."}, {"role": "user", "content": "Why?"}]
    second = create(client, previous_response_id=first.id, input=more, **options)
    kinds = ["message", "reasoning", "message", "function_call", "function_call"]
    kinds += ["function_call_output", "message", "message"]
    for order, expected in (("asc", kinds), ("desc", kinds[::-1])):
        listed = list(client.responses.input_items.list(second.id, limit=3, order=order))
        assert [item.type for item in listed] == expected
        assert len({item.id for item in listed}) == len(kinds)
        for item in listed:
            TypeAdapter(ResponseItem).validate_python(item.model_dump(exclude_none=True))
    assert [item.id for item in client.responses.input_items.list(first.id)] == [listed[-1].id]
    with pytest.raises(openai.BadRequestError, match="after"):
        client.responses.input_items.list(second.id, after="msg_x")
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.responses.input_items.list(second.id, limit=101)


def test_a_kept_response_is_not_streamed_again(client: openai.OpenAI) -> None:
    answer = create(client)
    given: Any
    for given in ({"stream": True}, {"starting_after": 1}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.retrieve(answer.id, **given)
        assert caught.value.param == next(iter(given))
