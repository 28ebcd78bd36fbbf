"""What a checkpoint folder says about prompts: its tokenizer, its special tokens and its chat template."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping

import attrs
from tokenizers import Tokenizer

from maple.checkpoint import tokenizer
from maple.errors import MapleError
from maple.prompt.template import TemplateInvalid

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@attrs.define(eq=False, str=False)
class TokenizerInvalid(MapleError):
    """A tokenizer file is missing or broken. ``file`` is its name, ``reason`` is for logs and /health."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


def read_config(folder: pathlib.Path) -> Mapping[str, object]:
    """tokenizer_config.json; a checkpoint without one has no special tokens to name. Raises TokenizerInvalid."""
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerInvalid(path.name, "cannot be read as JSON") from error
    if not isinstance(config, dict):
        raise TokenizerInvalid(path.name, "is not a JSON object")
    return config


def read_tokenizer(folder: pathlib.Path) -> Tokenizer:
    """tokenizer.json, as the engine reads it. Raises TokenizerInvalid."""
    try:
        return tokenizer.read_tokenizer(folder)
    except tokenizer.TokenizerUnreadable as error:
        raise TokenizerInvalid(tokenizer.FILE, error.reason) from error


def template_source(folder: pathlib.Path, config: Mapping[str, object]) -> str:
    """chat_template.jinja, or, in older checkpoints, a template or named ones in tokenizer_config.json.

    Raises TemplateInvalid.
    """
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        source = config.get("chat_template")
    except (OSError, ValueError) as error:
        raise TemplateInvalid("it cannot be read as UTF-8 text") from error
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    if not isinstance(source, str):
        raise TemplateInvalid("the checkpoint has none")
    return source


def special_tokens(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Names and texts of the special tokens that templates may print."""
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield name, content
