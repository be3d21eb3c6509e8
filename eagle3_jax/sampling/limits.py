"""Most of what one request's sampling options may name; what is compiled has room for it."""

MAX_STOP_IDS = 8
"""Stop ids the device looks for itself; the host looks for all of them."""
MAX_REQUEST_STOP_IDS = 64
"""Ids that may end one request, EOS ids included."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 16
MAX_KERNEL_BIASES = 32
"""Ids with a bias that a kernel that chooses a token looks for; more need written logits."""
MAX_LOGPROBS = 20
"""Best tokens whose log-probabilities a request may ask for at every position."""
