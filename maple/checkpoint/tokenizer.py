"""A checkpoint's tokenizer.json."""

from __future__ import annotations

import pathlib

from tokenizers import Tokenizer

from maple.checkpoint.errors import LoadError

FILE = "tokenizer.json"


class TokenizerUnreadable(LoadError):
    """The file is missing or no tokenizer; ``reason`` goes on where its name left off."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{FILE} {reason}")
        self.reason = reason


def read_tokenizer(folder: pathlib.Path) -> Tokenizer:
    """The tokenizer, without padding and truncation it may have been saved with. Raises TokenizerUnreadable."""
    try:
        tokenizer = Tokenizer.from_buffer((folder / FILE).read_bytes())
    except FileNotFoundError as error:
        raise TokenizerUnreadable("is missing") from error
    except Exception as error:  # the library raises bare Exception, whatever is wrong with the file
        raise TokenizerUnreadable("cannot be read as a tokenizer") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
