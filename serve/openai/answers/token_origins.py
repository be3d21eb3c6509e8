"""The response field `token_origins`: which tokens drafts gave, and which the target chose."""

from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Iterator, Sequence

from convert.text.json_pieces import JsonText, dumps
from serve.chat_format.marked_text import TokenBytes


class TokenOrigins:
    """Writes the tokens of one choice as they come.

    text: what a token adds, so that the texts in a row are the answer; a character split over
    tokens is in the last of them, and a stop id adds none. origin: 0 where the target chose it, i
    where it was accepted as draft i of its round.
    """

    def __init__(self, tokenizer: TokenBytes, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder: IncrementalDecoder = getincrementaldecoder("utf-8")("replace")

    def take(
        self, token_ids: Sequence[int], origins: Sequence[int], *, last: bool, silent: bool
    ) -> Iterator[JsonText]:
        """An entry a token; `last` says that none will follow, so that nothing is held back.

        silent: the last one is a stop id that is not part of the text.
        """
        final = len(token_ids) - 1
        for index, (token_id, origin) in enumerate(zip(token_ids, origins, strict=True)):
            hidden = silent and index == final
            data = b"" if hidden else self._tokenizer.token_bytes(token_id, self._skip_special)
            text = self._decoder.decode(data, final=last and index == final)
            yield JsonText(f'{{"text":{dumps(text)},"origin":{origin}}}')
