"""A PromptEncoder behind a small thread pool, for the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import pathlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from maple_protocols.ask import AnswerForm, Prompt

from maple.prompt.encode import EncodedPrompt, PromptEncoder
from maple.prompt.grammar import Calls, CompiledGrammar, compile_form
from maple.prompt.template import TemplateFailed

T = TypeVar("T")

log = structlog.get_logger(__name__)

POOL_THREADS = 2

Prepare = Callable[[Callable[[], EncodedPrompt]], Awaitable[EncodedPrompt]]
"""Runs the encoding of one prompt off the loop."""


class PromptPool:
    """A PromptEncoder behind a small thread pool, for the event loop."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self.encoder = encoder
        self._threads = concurrent.futures.ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="maple-prompt")

    async def encode(
        self, prompt: Prompt, *, thinking: bool, limit: int, prepare: Prepare | None = None
    ) -> EncodedPrompt:
        """As PromptEncoder.encode, in the pool, or wherever ``prepare`` runs it."""
        work = functools.partial(self.encoder.encode, prompt, thinking=thinking, limit=limit)
        try:
            return await (prepare or self._in_pool)(work)
        except TemplateFailed as error:
            log.error("prompt.template_failed", reason=error.reason)  # noqa: TRY400 -- no text of the client's
            raise

    async def compile(
        self, wanted: AnswerForm | Calls, folder: pathlib.Path, eos: tuple[int, ...]
    ) -> CompiledGrammar:
        """The grammar of a form or of forced calls, in the pool. Raises GrammarRefused."""
        return await self._in_pool(functools.partial(compile_form, wanted, folder, eos))

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Stop the pool's threads; nothing may be encoded afterwards."""
        self._threads.shutdown(wait=True, cancel_futures=True)
