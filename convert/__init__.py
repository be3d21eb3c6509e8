"""Published checkpoints to Flax modules and back; file formats live here and nowhere else."""

from convert.load import load_draft as load_draft
from convert.load import load_target as load_target
from convert.save import save_hf as save_hf
from convert.save_store import save_store as save_store
from convert.tokenizer import Tokenizer as Tokenizer
from convert.tokenizer import load_tokenizer as load_tokenizer
from convert.tokenizer_json import write_tokenizer_json as write_tokenizer_json
