"""Model of a compiled kernel's speed on a GPU: arithmetic on its code's facts, nothing measured."""
