"""Pictures and questions are reproducible; test_sighted_pair.py answers them."""

import hashlib
from itertools import islice
from random import Random

from eagle3_tools.make_demo.pictures.picture import pictures, png
from eagle3_tools.make_demo.pictures.questions import TOPICS, ask


def test_pictures_and_questions_are_those_of_the_pairs_training() -> None:
    """Shapes were once counted again from pixels, and answers derived from them."""
    rng = Random(0)
    told = [
        (p, [ask(rng, topic, p) for topic in TOPICS]) for p in islice(pictures("train", 0), 200)
    ]
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == "6359412711a18972"


def test_a_seed_and_a_split_are_other_pictures() -> None:
    first, again = (list(islice(pictures("held_out", 5), 20)) for _ in range(2))
    assert first == again and png(first[0]) == png(again[0])
    files = {png(picture) for picture in first}
    for split, seed in (("train", 5), ("held_out", 6)):
        assert not files & {png(picture) for picture in islice(pictures(split, seed), 200)}
