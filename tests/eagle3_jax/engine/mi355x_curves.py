"""Curves of Kimi-K2.5 on MI355X that a test feeds to the controller instead of measurements.

Computed, not measured: a roofline of one round, MXFP4 target on TP4, FP8 MHA draft with a BF16
head on TP1, 1536 tokens of context; verify of k + 1 rows and k draft steps, k = 0 with the draft's
first pass without its head. "roof": bytes and flops at datasheet rates; "tuned": with published
rates and launch costs of AITER's kernels.
"""

ACCEPT_LENGTHS = (1.0, 1.83, 2.43, 2.88, 3.24, 3.46, 3.62)
"""InferenceX's golden_al_distribution/kimik2.5_eagle3.yaml, thinking on, k = 0..6."""

ROUND_MS = {
    "roof": {
        4: (2.337, 3.932, 5.535, 7.045, 8.47, 9.817, 11.091),
        8: (3.717, 6.318, 8.711, 10.816, 12.676, 14.331, 15.81),
        16: (6.183, 10.118, 13.254, 15.688, 17.621, 19.195, 20.514),
        32: (10.141, 15.047, 18.176, 20.253, 21.796, 23.08, 24.225),
        64: (15.387, 19.728, 22.177, 24.018, 25.697, 27.355, 29.076),
    },
    "tuned": {
        4: (8.365, 10.322, 12.356, 14.29, 16.135, 17.888, 19.554),
        8: (10.05, 13.217, 16.214, 18.888, 21.297, 23.461, 25.417),
        16: (13.069, 17.849, 21.774, 24.905, 27.491, 29.651, 31.515),
        32: (17.948, 23.935, 27.938, 30.799, 33.135, 35.147, 36.999),
        64: (24.529, 29.966, 33.381, 36.296, 39.386, 42.428, 45.457),
    },
}
"""Milliseconds of a round of k = 0..6 by batch size."""

EXPERTS_MS = {"roof": 16.8, "tuned": 20.1}
"""What reading all routed experts once takes of a round, by the same computation."""


def experts_share(rows: int) -> float:
    """The share of Kimi-K2.5's experts that this many rows choose, evenly: 8 of 384 each."""
    return 1 - (1 - 8 / 384) ** rows
