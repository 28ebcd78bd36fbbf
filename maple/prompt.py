"""Chat template and tokenizer: a request's prompt becomes ids, off the loop's thread, without transformers."""

from __future__ import annotations

import pathlib

import attrs

from maple_protocols.ask import Prompt


@attrs.frozen(kw_only=True)
class EncodedPrompt:
    """``text`` is the rendered prompt in which client text holds no control strings; ``subject`` is the last user
    message (or the raw prompt)."""

    ids: tuple[int, ...]
    text: str
    subject: str


class PromptEncoder:
    """The tokenizer and template of one checkpoint folder. Thread safe once built."""

    def __init__(self, folder: pathlib.Path) -> None:
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        """How many ids have a token: ids 0..vocabulary−1."""
        raise NotImplementedError

    @property
    def template_variables(self) -> frozenset[str]:
        """The names that the template itself reads, beyond messages, tools and add_generation_prompt."""
        raise NotImplementedError

    def encode(self, prompt: Prompt, *, thinking: bool, limit: int) -> EncodedPrompt:
        """Render and tokenise. Raises PromptTooLong before tokenising text that cannot fit ``limit`` ids."""
        raise NotImplementedError


class PromptPool:
    """A PromptEncoder behind a small thread pool, for the event loop."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self.encoder = encoder

    async def encode(self, prompt: Prompt, *, thinking: bool, limit: int) -> EncodedPrompt:
        """As PromptEncoder.encode, in the pool."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the pool's threads; nothing may be encoded afterwards."""
        raise NotImplementedError
