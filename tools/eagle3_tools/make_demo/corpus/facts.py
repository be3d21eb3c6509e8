"""Dialogue over an invented table: the towns of an island that does not exist."""

import random

from eagle3_tools.make_demo.corpus.conversation import Conversation, assistant, user

TOWNS = (
    "Velmora Tarnick Oshby Quelin Dravenholm Istra Pellow Kasmere Brindle Yorvale Mirrow Fenwick "
    "Ulster Cobalt Halden Nerith"
).split()
RIVERS = "Tarn Isk Loom Brae Wend Oril Sable Thorn".split()
MAYORS = (
    "Mara Finch, Otto Vale, Lena Marsh, Silas Reed, Nora Pike, Hugo Stone, Edda Frost, Ivo Lark"
).split(", ")
DISHES = (
    "plum soup, fried eel, barley bread, goat cheese, apple pie, leek stew, smoked trout, oat cake"
).split(", ")
MONTHS = "March April May June July August September October".split()
FLAGS = "green, blue and white, red, black and gold, yellow, purple, white, orange".split(", ")

# attribute -> (values, its name in a question, the answer sentence)
ATTRIBUTES = {
    "river": (RIVERS, "river", "The river that runs through {town} is the {value}."),
    "mayor": (MAYORS, "mayor", "The mayor of {town} is {value}."),
    "dish": (DISHES, "favourite dish", "People in {town} love {value} above every other dish."),
    "festival": (MONTHS, "festival month", "The festival of {town} takes place in {value}."),
    "flag": (FLAGS, "flag", "The flag of {town} is {value}."),
    "founded": (list(range(1203, 1900, 41)), "founding year", "{town} was founded in {value}."),
}
QUESTIONS = (
    "What is the {name} of {town}?",
    "Tell me the {name} of {town}.",
    "Do you know the {name} of {town}?",
    "I would like to know the {name} of {town}, please.",
    "{town}: what is its {name}?",
)
FOLLOW_UPS = ("And its {name}?", "What about its {name}?")


def _table() -> dict[str, dict[str, object]]:
    rng = random.Random("island")
    return {
        town: {name: rng.choice(values) for name, (values, _, _) in ATTRIBUTES.items()}
        for town in TOWNS
    }


FACTS = _table()


def draw(rng: random.Random) -> Conversation:
    """Draw one to three questions about one town, with their answers."""
    town = rng.choice(TOWNS)
    attributes = rng.sample(sorted(ATTRIBUTES), rng.choice((1, 1, 2, 3)))
    keys, messages = [], []
    for turn, attribute in enumerate(attributes):
        phrase = rng.choice(FOLLOW_UPS if turn else QUESTIONS)
        question = phrase.format(name=ATTRIBUTES[attribute][1], town=town)
        keys.append(f"{town}: {question}")
        messages += [user(question), assistant(sentence(town, attribute))]
    return Conversation(tuple(keys), tuple(messages))


def sentence(town: str, attribute: str) -> str:
    """Return the answer about one attribute of one town."""
    return ATTRIBUTES[attribute][2].format(town=town, value=FACTS[town][attribute])
