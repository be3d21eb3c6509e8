"""The response field `token_origins`: which tokens came from drafts, and which from the target."""

from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Iterator, Sequence

from convert.text.json_pieces import JsonText, dumps
from serve.chat_format.marked_text import TokenBytes


class TokenOrigins:
    """Formats the tokens of one choice as they arrive.

    `text` is the text that a token adds; the joined texts are the answer. A character split over
    tokens is in the last of them, and a stop id adds none. `origin` is 0 for a token chosen by the
    target, i for one accepted as draft i of its round.
    """

    def __init__(self, tokenizer: TokenBytes, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder: IncrementalDecoder = getincrementaldecoder("utf-8")("replace")

    def take(
        self, token_ids: Sequence[int], origins: Sequence[int], *, last: bool, silent: bool
    ) -> Iterator[JsonText]:
        """Yield an entry per token. With `last`, no token follows, so that no text is held back.

        `silent`: the last token is a stop id that is not part of the text.
        """
        final = len(token_ids) - 1
        for index, (token_id, origin) in enumerate(zip(token_ids, origins, strict=True)):
            hidden = silent and index == final
            data = b"" if hidden else self._tokenizer.token_bytes(token_id, self._skip_special)
            text = self._decoder.decode(data, final=last and index == final)
            yield JsonText(f'{{"text":{dumps(text)},"origin":{origin}}}')
