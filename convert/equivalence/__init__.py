"""Compare every layer of a conversion with transformers, one layer in memory at a time.

For Kimi, MiniMax and Llama.

    python -m convert.equivalence PUBLISHED [CONVERTED] --layers 0,1,30,60 --tokens 16

Both sides get the same input, transformers' output of the layer before. So differences do not add
up, and layers can be selected. Needs torch. Weights are dequantised, activations are not quantised.
On torch's side only the experts that some token selects are read.
"""
