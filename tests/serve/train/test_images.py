"""Conversations about pictures are what a target that sees reads when it is served."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from convert import load_draft, load_target, load_tokenizer, load_vision
from convert.load import prepare_vision
from convert.text.chat_template import compile_template
from eagle3_jax.full_pass import forward
from eagle3_jax.training.batches import ImageEncoder, packed_batches
from eagle3_jax.training.features import feature_pass
from eagle3_jax.vision.encode import encode_images
from eagle3_tools.make_demo.corpus.conversation import Message, assistant, user
from eagle3_tools.make_demo.pictures.batches import sample_maker
from eagle3_tools.make_demo.pictures.picture import png
from eagle3_tools.make_demo.pictures.questions import Asked, held_out
from serve.chat_setup import set_up_images
from serve.demo import demo_vision_target_dir
from serve.images.options import ImageOptions
from serve.images.sources import data_url
from serve.train.answers import SampleMaker
from serve.train.cli import main

TARGET = demo_vision_target_dir()
AUX = (1, 2)


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    return list(islice(held_out(), 5))


def shown(asked: Asked, number: int = 1) -> list[Message]:
    """A question about a picture, shown so many times, and its answer."""
    image = {"type": "image_url", "image_url": {"url": data_url(png(asked.picture))}}
    text = {"type": "text", "text": asked.question.text}
    return [user([*[image] * number, text]), assistant(asked.question.answer)]


@pytest.fixture(scope="module")
def make() -> Iterator[SampleMaker]:
    tokenizer = load_tokenizer(TARGET)
    with ExitStack() as owner:
        images = set_up_images(ImageOptions(), prepare_vision(TARGET).model, owner)
        yield SampleMaker(tokenizer, tokenizer.eos_token_ids, images=images)


def test_samples_are_those_of_the_pairs_own_training(make: SampleMaker, asked: list[Asked]) -> None:
    expected = sample_maker(make.tokenizer)
    for one in asked:
        (sample,) = make(shown(one))
        other = expected(one.question)
        assert list(sample.token_ids) == list(other.token_ids)
        assert list(sample.wanted) == list(other.wanted)
        assert len(sample.images) == 1


def test_a_template_that_leaves_an_image_out_is_refused(
    make: SampleMaker, asked: list[Asked]
) -> None:
    first, second = shown(asked[0]), shown(asked[1])
    samples = make([*first, *second])
    assert [len(sample.images) for sample in samples][-1] == 2
    blind = compile_template("{% for m in messages %}{{ m.role }}{% endfor %}", "blind")
    unseeing = replace(make, tokenizer=replace(make.tokenizer, template=blind))
    with pytest.raises(ValueError, match="0 places for 1 images"):
        unseeing(first)


@pytest.mark.long
def test_features_see_what_serving_sees(make: SampleMaker, asked: list[Asked]) -> None:
    """Packed rows, some with text alone, are compared in the order of an epoch and the next."""
    target, vision = load_target(TARGET), load_vision(TARGET)
    placeholder = vision.config.media_placeholder_token_id
    samples = [make(shown(asked[0]))[0], make([user("Hi"), assistant("Hello")])[0]]
    samples += make(shown(asked[1], number=2))
    length = 2 * max(len(sample.token_ids) for sample in samples)
    encode = ImageEncoder(vision, placeholder, jnp.float32)
    batches = packed_batches(samples, 2, length, seed=3, epochs=2, encode=encode)
    run, checked, expected = feature_pass(target, AUX, 16), 0, {}
    for sample in samples:
        ids = np.zeros((1, length), np.int32)  # One length, one program.
        ids[0, : len(sample.token_ids)] = sample.token_ids
        seen = encode_images(vision, sample.images)
        true, blind = (
            forward(target, ids, aux_layer_ids=AUX, image_features=features).aux_hidden[0]
            for features in (seen, None)
        )
        differs = np.abs(true - blind)[: len(sample.token_ids)].max() > 0.01
        assert differs == bool(sample.images)
        expected[tuple(sample.token_ids)] = true
    for batch in batches:
        found = run(batch)
        for row, segments in enumerate(np.asarray(batch.segments)):
            for segment in range(1, segments.max() + 1):
                (own,) = np.nonzero(segments == segment)
                ids = tuple(np.asarray(batch.token_ids)[row, own].tolist())
                true = expected[ids][: len(ids)]
                np.testing.assert_allclose(found.aux[row, own], true, atol=1e-4)
                checked += 1
    assert checked == 2 * len(samples)


@pytest.mark.long
def test_a_draft_trains_on_pictures_and_on_features_of_them_alike(
    asked: list[Asked], tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f"{json.dumps({'messages': shown(one)})}\n" for one in asked))
    rows = ["--target", f"{TARGET}", "--rows", "2", "--row-length", "128"]
    made = ["--intermediate-size", "32", "--unroll", "2", "--draft-vocab", "40", "--epochs", "1"]
    online, kept, to = (tmp_path / name for name in ("online", "kept", "features"))
    assert main(["draft", *rows, *made, "--data", f"{data}", "--output", f"{online}"]) == 0
    assert main(["features", *rows, "--data", f"{data}", "--to", f"{to}"]) == 0
    assert main(["draft", *rows, *made, "--features", f"{to}", "--output", f"{kept}"]) == 0
    assert (online / "model.safetensors").read_bytes() == (kept / "model.safetensors").read_bytes()
    assert load_draft(online, load_target(TARGET)).config.draft_vocab_size == 40
