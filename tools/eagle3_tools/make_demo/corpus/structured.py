"""Answers in JSON, and calls of declared tools in Kimi's form."""

import json
import random
from typing import Any

from eagle3_tools.make_demo.corpus.conversation import (
    Conversation,
    Message,
    assistant,
    exchange,
    user,
)

NAMES = "Ada Ben Cleo Dan Eva Finn Gina Hugo Iris Jon Kira Leo Mona Nils Olga Paul".split()
CITIES = "Oslo Rome Lima Cairo Paris Tokyo Delhi Quito Accra Perth".split()
GOODS = "lamp chair rope brush clock plate glove scarf".split()
SKIES = ("clear", "cloudy", "rainy", "windy")


def draw(rng: random.Random) -> Conversation:
    """Draw a random JSON request or tool call."""
    return rng.choice((_person, _order, _point, _tool_call, _tool_call, _tool_result))(rng)


def correct(conversation: Conversation, answer: str) -> bool:
    """Return whether `answer` is the expected text, or the expected calls as by `tool_text`."""
    message = conversation.answer
    return answer.strip() == (message["content"] or tool_text(message))


def tool_text(message: Message) -> str:
    """Return the calls of an assistant message as the chat template renders them."""
    calls = "".join(
        f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
        f"{call['function']['arguments']}<|tool_call_end|>"
        for call in message.get("tool_calls", ())
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def _json_exchange(request: str, value: dict[str, Any]) -> Conversation:
    text = json.dumps(value)
    return exchange(f"json {text}", request, text)


def _person(rng: random.Random) -> Conversation:
    name, age, city = rng.choice(NAMES), rng.randint(10, 99), rng.choice(CITIES)
    request = rng.choice(
        (
            f"Give JSON for a person: name {name}, age {age}, city {city}.",
            f"As JSON with name, age and city: {name} is {age} and lives in {city}.",
        )
    )
    return _json_exchange(request, {"name": name, "age": age, "city": city})


def _order(rng: random.Random) -> Conversation:
    item, count, buyer = rng.choice(GOODS), rng.randint(2, 60), rng.choice(NAMES)
    paid = rng.random() < 0.5
    state = "paid" if paid else "not paid"
    request = f"Write this order as JSON: {buyer} wants {count} of {item}, {state}."
    return _json_exchange(request, {"buyer": buyer, "item": item, "count": count, "paid": paid})


def _point(rng: random.Random) -> Conversation:
    x, y, label = rng.randrange(100), rng.randrange(100), rng.choice(CITIES)
    request = f"Write as JSON a point labelled {label} at x {x} and y {y}."
    return _json_exchange(request, {"label": label, "at": {"x": x, "y": y}})


def _tool(name: str, description: str, **parameters: str) -> Message:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = {
    "get_weather": _tool("get_weather", "Weather in a city", city="string"),
    "get_time": _tool("get_time", "Local time in a city", city="string"),
    "send_mail": _tool("send_mail", "Mail a person", to="string", text="string"),
    "set_timer": _tool("set_timer", "Start a timer", minutes="integer"),
}


def _request(rng: random.Random, name: str) -> tuple[str, dict[str, Any]]:
    """Return a question that requires tool `name`, and the arguments of the call."""
    city, person, minutes = rng.choice(CITIES), rng.choice(NAMES), rng.randint(2, 90)
    match name:
        case "get_weather":
            return rng.choice(("How is the weather in {}?", "Is it raining in {}?")).format(city), {
                "city": city
            }
        case "get_time":
            return f"What time is it in {city}?", {"city": city}
        case "send_mail":
            thing = rng.choice(GOODS)
            text = f"The {thing} is ready"
            return f"Mail {person} that the {thing} is ready.", {"to": person, "text": text}
        case _:
            return f"Set a timer for {minutes} minutes.", {"minutes": minutes}


def _call(name: str, arguments: dict[str, Any]) -> Message:
    call = {
        "id": f"functions.{name}:0",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _tool_call(rng: random.Random) -> Conversation:
    names = rng.sample(sorted(TOOLS), 2)
    question, arguments = _request(rng, names[0])
    tools = tuple(TOOLS[name] for name in sorted(names))
    messages = (user(question), _call(names[0], arguments))
    return Conversation((f"call {question} {','.join(sorted(names))}",), messages, tools)


def _tool_result(rng: random.Random) -> Conversation:
    city, degrees, sky = rng.choice(CITIES), rng.randint(1, 35), rng.choice(SKIES)
    question = f"How is the weather in {city}?"
    result = {
        "role": "tool",
        "name": "get_weather",
        "tool_call_id": "functions.get_weather:0",
        "content": json.dumps({"celsius": degrees, "sky": sky}),
    }
    answer = assistant(f"In {city} it is {degrees} degrees and {sky}.")
    messages = (user(question), _call("get_weather", {"city": city}), result, answer)
    return Conversation((f"result {city} {degrees} {sky}",), messages, (TOOLS["get_weather"],))
