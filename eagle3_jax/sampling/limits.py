"""Limits on one request's sampling options, for which compiled programs have room."""

MAX_STOP_IDS = 8
"""Stop ids that the device checks itself; the host checks all of them."""
MAX_REQUEST_STOP_IDS = 64
"""Ids that may end one request, EOS ids included."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 16
MAX_KERNEL_BIASES = 32
"""Ids with a bias that a token-choosing kernel supports; more of them need full logits."""
MAX_LOGPROBS = 20
"""Best tokens whose log-probabilities a request may ask for at every position."""
