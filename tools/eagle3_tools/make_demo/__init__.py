"""Make the embedded pairs: corpus and pictures, tokenizers, targets and the vision draft.

Run `python -P -m eagle3_tools.make_demo --help`. `eagle3-train draft` trains the draft for text on
conversations that `corpus` writes.
"""
