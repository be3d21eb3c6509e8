"""Is a conversion right? Every layer against transformers' own, one layer in memory at a time.

For Kimi, MiniMax and Llama.

    python -m convert.equivalence PUBLISHED [CONVERTED] --layers 0,1,30,60 --tokens 16

Both sides get the same input, transformers' output of the layer before, so that differences do not
add up and layers can be picked. Needs torch; weights are dequantised, activations are not
quantised. Of the experts only those that some token chooses are ever read on torch's side.
"""
