"""Load published checkpoints into Flax modules and save them. All file-format code lives here."""

from typing import TYPE_CHECKING

from eagle3_jax.lazy import lazy_names

if TYPE_CHECKING:
    from convert.hub.source import Source as Source
    from convert.images import read_frames as read_frames
    from convert.images import read_image as read_image
    from convert.load import load_draft as load_draft
    from convert.load import load_target as load_target
    from convert.load import load_vision as load_vision
    from convert.save import save_hf as save_hf
    from convert.save import save_store as save_store
    from convert.text.tokenizer import Tokenizer as Tokenizer
    from convert.text.tokenizer import load_tokenizer as load_tokenizer
    from convert.text.tokenizer_json import write_tokenizer_json as write_tokenizer_json
    from eagle3_jax.vision.item import ImageItem as ImageItem

__getattr__ = lazy_names(
    __name__,
    {
        "convert.hub.source": ("Source",),
        "convert.images": ("read_frames", "read_image"),
        "convert.load": ("load_draft", "load_target", "load_vision"),
        "convert.save": ("save_hf", "save_store"),
        "convert.text.tokenizer": ("Tokenizer", "load_tokenizer"),
        "convert.text.tokenizer_json": ("write_tokenizer_json",),
        "eagle3_jax.vision.item": ("ImageItem",),
    },
)
