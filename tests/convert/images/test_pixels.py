"""Pixels, grids and sizes against vLLM's processor and Pillow, exactly; hostile files."""

import hashlib
import io
import json
import zlib
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from image_goldens import FACTS, ITEMS, VISION, config_of, golden_vision, read_item
from oracle_files import ORACLES
from PIL import Image

from convert import read_frames, read_image
from convert.images import resize, sizes_of
from eagle3_jax.config.vision import VisionConfig

CONFIG = config_of()
GOLDENS = golden_vision()
RELEASED = VisionConfig.from_hf(
    json.loads((ORACLES / "published" / "kimi-k2.5.config.json").read_text())
)
PUBLISHED_HASHES = {
    (32, 48): "37ae1786eb941cb4b9695c9f78b71996cfdfbb34870b2269a9f2cee08d7b0c52",
    (57, 33): "589f703f2e54ba8b231cb09347606dd2076f956533da9b6b27646ffe2ca86478",
}


def as_file(pixels: np.ndarray, format: str = "PNG", **how: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **how)
    return file.getvalue()


@pytest.mark.parametrize("name", ITEMS)
def test_patches_grids_and_tokens_are_vllms(name: str) -> None:
    item = read_item(name, CONFIG)
    assert list(item.grid_thw) == ITEMS[name]["grid_thw"]
    assert item.num_tokens == ITEMS[name]["tokens"]
    np.testing.assert_array_equal(item.patches, GOLDENS[f"{name}.pixels_u8"])


def test_the_released_rule_of_sizes() -> None:
    table = FACTS["resize_table"]
    config = replace(RELEASED, pixels=replace(RELEASED.pixels, **table["limits"]))
    for width, height, *expected in table["rows"]:
        found: list[int] = []
        for frames in (None, 1):
            sizes = sizes_of(width, height, config.pixels.limit(frames), config)
            area = (sizes.width + sizes.pad_width) * (sizes.height + sizes.pad_height)
            found += [*sizes, area // 28**2]
        assert found == expected, (width, height)


@pytest.mark.parametrize("name", [n for n in GOLDENS if n.startswith("resize.") and "src" not in n])
def test_resampling_is_pillows_with_columns_first(name: str) -> None:
    source = Image.fromarray(GOLDENS["resize.src_u8"])
    expected = GOLDENS[name]
    found = np.asarray(resize(source, expected.shape[1], expected.shape[0]))
    assert np.array_equal(found, expected) == ("pillow13" not in name)


def official_image(width: int, height: int) -> np.ndarray:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    if (width, height) == (32, 48):
        channels = (7 * x + 3 * y + 11, 5 * x + 13 * y + 29, 17 * x + 9 * y + 47)
        return np.stack(channels, -1).astype(np.uint8)
    even = (x // 5 + y // 5)[..., None] % 2 == 0
    return np.where(even, (20, 40, 220), (235, 190, 25)).astype(np.uint8)


@pytest.mark.parametrize("size", PUBLISHED_HASHES)
def test_pixels_have_the_hashes_of_the_official_processor(size: tuple[int, int]) -> None:
    patches = read_image(as_file(official_image(*size)), RELEASED).patches
    values = ((patches.astype(np.float32) / 255 - 0.5) * 2).astype(ml_dtypes.bfloat16)
    head = json.dumps({"dtype": "bfloat16", "shape": list(values.shape)}, separators=(",", ":"))
    digest = hashlib.sha256(head.encode() + b"\0" + values.tobytes()).hexdigest()
    assert digest == PUBLISHED_HASHES[size]


def test_a_chunk_shares_the_limit_of_its_video() -> None:
    pixels = replace(CONFIG.pixels, in_patch_limit_each_frame=None, in_patch_limit_video=10)
    assert [pixels.limit(n) for n in (None, 1, 3, 4)] == [64, 10, 3, 2]


def test_a_digest_tells_contents_and_processing_apart() -> None:
    data = (VISION / "images" / "rgba.png").read_bytes()
    other = (VISION / "images" / "exif.png").read_bytes()
    coarser = replace(CONFIG, pixels=replace(CONFIG.pixels, in_patch_limit=16))
    digests = [
        read_image(data, CONFIG).digest,
        read_image(other, CONFIG).digest,
        read_image(data, CONFIG, exif=False).digest,
        read_image(data, CONFIG, background=None).digest,
        read_image(data, coarser).digest,
        read_frames([data], CONFIG).digest,
        read_frames([data, data], CONFIG).digest,
    ]
    assert len(set(digests)) == len(digests) and {len(d) for d in digests} == {32}
    assert read_image(data, CONFIG).digest == digests[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        as_file(official_image(32, 48), "TIFF"),
        as_file(official_image(32, 48))[:200],
        as_file(official_image(32, 48), "JPEG")[:300],
    ],
    ids=["empty", "eps", "tiff", "cut png", "cut jpeg"],
)
def test_what_is_no_whole_image_is_refused_in_one_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected an image"):
        read_image(data, CONFIG)


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    header = as_file(np.zeros((2, 2), np.uint8))
    huge = bytearray(header)
    huge[16:24] = (60_000).to_bytes(4, "big") * 2
    huge[29:33] = zlib.crc32(huge[12:29]).to_bytes(4, "big")
    cases: list[tuple[bytes, dict[str, Any]]] = [(bytes(huge), {}), (header, {"max_pixels": 3})]
    for data, limit in cases:
        with pytest.raises(ValueError, match="pixels"):
            read_image(data, CONFIG, **limit)


def test_frames_of_a_chunk_have_one_size_and_a_limit() -> None:
    small, large = (as_file(np.zeros((s, s, 3), np.uint8)) for s in (10, 40))
    with pytest.raises(ValueError, match="must have one size"):
        read_frames([small, large], CONFIG)
    for count in (0, CONFIG.pos_emb_time + 1):
        with pytest.raises(ValueError, match="a chunk has 1 to 4 frames"):
            read_frames([small] * count, CONFIG)
