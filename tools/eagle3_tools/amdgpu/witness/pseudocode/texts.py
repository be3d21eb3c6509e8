"""AMD's text for an opcode, as tinygrad's wheel ships it: the one place that imports the wheel."""

import importlib
import re
from functools import cache

_ENCODING = re.compile(r"_e(32|64)$")


@cache
def _by_mnemonic() -> dict[str, str]:
    """CDNA's texts, then RDNA4's for the opcodes that CDNA's texts call but do not give."""
    found: dict[str, str] = {}
    for family in ("cdna", "rdna4"):
        module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{family}.str_pcode")
        for opcode, text in module.PCODE.items():
            mnemonic = _ENCODING.sub("", opcode.name.lower())
            if family == "cdna" or mnemonic in ("v_maximum_f32", "v_minimum_f32"):
                found[mnemonic] = text
    return found


def amd_text(mnemonic: str) -> str | None:
    """The text for a mnemonic such as "v_add_f32", unchanged, or None where AMD gives none."""
    return _by_mnemonic().get(mnemonic)
