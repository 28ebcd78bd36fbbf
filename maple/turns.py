"""How turns are opened: Ask → prompt ids → Job, with everything that is decided once a request."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping

import attrs
from maple_protocols.adapter import Identity
from maple_protocols.ask import Ask, Conversation, SamplingWish
from maple_protocols.openai.tokens import TokenFacts

from maple.choices import AnyTurn, Choices, sibling
from maple.engine.api import Engine, EngineStatus, Job, Sampling, Served
from maple.engine.errors import EngineError, ModelLoading, PromptTooLong
from maple.engine.thinking import ThinkingLimits
from maple.prompt.encode import EncodedPrompt
from maple.prompt.pool import Prepare, PromptPool
from maple.turn import Turn
from maple.turn_parsers import ParserPair

FALLBACK_TEMPERATURE = 0.6

FALLBACK_TOP_P = 0.95

FALLBACK_TOP_K = 20

_RESERVE_PART = 4
"""The answer's reserve is no more than a quarter of the limit."""


@attrs.frozen(kw_only=True)
class TurnDefaults:
    """The server's own word on what a request leaves open; None hands it on to the checkpoint."""

    model_id: str
    max_new_tokens: int
    max_new_tokens_limit: int
    max_prompt_tokens: int
    temperature: float | None
    top_p: float | None
    top_k: int | None
    enable_thinking: bool
    request_timeout: float
    answer_reserve: int = 0
    loop_guard: bool = False
    efforts: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class _Begun:
    """A prompt's job, and its rendered text."""

    job: Job
    text: str
    fills_window: bool


def _unsigned(_: str) -> str:
    return ""


class Turns:
    """Opens turns. One per server; ``prompts`` is set once the tokenizer is loaded."""

    def __init__(
        self,
        engine: Engine,
        parsers: ParserPair,
        defaults: TurnDefaults,
        sign: Callable[[str], str] = _unsigned,
    ) -> None:
        self.engine = engine
        self._sign = sign
        self.prompts: PromptPool | None = None
        self._parsers = parsers
        self._defaults = defaults
        self._prompt_error: str | None = None

    @property
    def status(self) -> EngineStatus:
        """The engine's status, "loading" until the tokenizer is there too."""
        if self._prompt_error is not None:
            return "error"
        if self.engine.status == "ok" and self.prompts is None:
            return "loading"
        return self.engine.status

    @property
    def error(self) -> str | None:
        """One line, once ``status`` is "error"."""
        return self._prompt_error or self.engine.error

    def fail(self, reason: str) -> None:
        """The tokenizer or template could not be loaded: no turn can be opened."""
        self._prompt_error = reason

    @property
    def prompt_limit(self) -> int:
        """The most ids that a prompt may have. Raises ModelLoading."""
        if self.engine.served is None:
            raise ModelLoading
        return self._prompt_limit(self.engine.served)

    async def open(self, ask: Ask, *, owner: str, request_id: str, prepare: Prepare | None = None) -> AnyTurn:
        """Render, tokenise, check the length and submit. A cancellation meanwhile is counted by the engine.

        ``prepare`` runs the first two off the loop, by default in the prompts' own pool. Raises PromptTooLong, or
        whatever ``Engine.submit`` raises.
        """
        asks = [ask, *(attrs.evolve(ask, prompt=one) for one in ask.further)]
        begun = [await self._begin(one, owner, request_id, prepare) for one in asks]
        identity = self._identity(ask, begun[0].job.sampling, request_id)
        turns: list[Turn] = []
        try:
            for one in begun:
                for choice in range(ask.choices):
                    turns.append(self._turn(ask, one, choice, identity, first=not turns))
        except EngineError:
            for turn in turns:
                turn.cancel()
            raise
        return turns[0] if len(turns) == 1 else Choices(turns, ask.choices)

    async def _begin(self, ask: Ask, owner: str, request_id: str, prepare: Prepare | None) -> _Begun:
        """What one prompt comes to, before it is submitted."""
        served = self.engine.served
        if served is None or self.prompts is None:
            raise ModelLoading
        limit = self._prompt_limit(served)
        try:
            prompt = await self.prompts.encode(
                ask.prompt, thinking=self._thinking(ask), limit=limit, prepare=prepare
            )
        except asyncio.CancelledError:  # there is no ticket yet that could count it
            self.engine.count_cancelled()
            raise
        job = self._job(ask, prompt, served, owner=owner, request_id=request_id)
        if (wanted := self._parsers.held_to(ask)) is not None:
            behind = self._parsers.answer_behind(ask, prompt.text)
            grammar = await self.prompts.compile(wanted, served.folder, served.eos_token_ids)
            job = attrs.evolve(job, grammar=grammar, grammar_behind=behind)
        thinking = self._thinking_limits(ask, prompt.text, self.prompts, job.max_tokens)
        room = served.max_model_len - len(prompt.ids)
        return _Begun(
            job=attrs.evolve(job, thinking=thinking),
            text=prompt.text,
            fills_window=job.max_tokens == room != ask.max_tokens,
        )

    def _identity(self, ask: Ask, sampling: Sampling, request_id: str) -> Identity:
        return Identity(
            key=secrets.token_hex(16),
            created=int(time.time()),
            model=ask.model or self._defaults.model_id,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            request_id=request_id,
            sign=self._sign,
        )

    def _turn(self, ask: Ask, begun: _Begun, choice: int, identity: Identity, *, first: bool) -> Turn:
        """Submit one choice. Raises what ``Engine.submit`` raises."""
        chain = self._parsers.chain(ask, begun.text)
        ticket = self.engine.submit(sibling(begun.job, choice, first=first))
        return Turn(
            identity=identity,
            request_id=identity.request_id,
            ticket=ticket,
            chain=chain,
            fills_window=begun.fills_window,
            scored=ask.scores is not None,
            closable=begun.job.thinking is not None,
        )

    async def count(self, ask: Ask, *, prepare: Prepare | None = None) -> int:
        """How many tokens the prompt of ``ask`` has; 0 for a conversation without a message.

        ``prepare`` is as for ``open``. Raises PromptTooLong where the prompt could not be served.
        """
        served = self.engine.served
        if served is None or self.prompts is None:
            raise ModelLoading
        if isinstance(ask.prompt, Conversation) and not ask.prompt.messages:
            return 0
        limit = self._prompt_limit(served)
        thinking = self._thinking(ask)
        prompt = await self.prompts.encode(ask.prompt, thinking=thinking, limit=limit, prepare=prepare)
        return len(prompt.ids)

    def token_facts(self, ask: Ask, *, renders: bool) -> TokenFacts:
        """What the tokenizer, or with ``renders`` the template, makes of the prompt of ``ask``. Any thread.

        Raises ModelLoading, PromptTooLong, TemplateFailed or TemplateRefused.
        """
        served = self.engine.served
        if served is None or self.prompts is None:
            raise ModelLoading
        encoder, limit, thinking = self.prompts.encoder, self._prompt_limit(served), self._thinking(ask)
        if renders and isinstance(ask.prompt, Conversation):
            ids: tuple[int, ...] = ()
            text = encoder.render(ask.prompt, thinking=thinking, limit=limit)
        else:
            prompt = encoder.encode(ask.prompt, thinking=thinking, limit=limit)
            ids, text = prompt.ids, prompt.text
        return TokenFacts(ids=ids, text=text, spelling=encoder.spelling, max_model_len=served.max_model_len)

    def default_sampling(self, served: Served) -> Sampling:
        """What a request that says nothing is sampled with."""
        return self._sampling(SamplingWish(), served)

    @property
    def default_max_tokens(self) -> int:
        """How many tokens a request that says nothing may have at most."""
        return min(self._defaults.max_new_tokens, self._defaults.max_new_tokens_limit)

    def _thinking(self, ask: Ask) -> bool:
        if isinstance(ask.prompt, Conversation) and ask.prompt.thinking is not None:
            return ask.prompt.thinking
        return self._defaults.enable_thinking

    def _thinking_limits(
        self, ask: Ask, prompt: str, prompts: PromptPool, most: int
    ) -> ThinkingLimits | None:
        """What bounds the reasoning that ``prompt`` leaves open; None where nothing does. Raises GrammarRefused."""
        reserve = min(self._defaults.answer_reserve, most // _RESERVE_PART)
        budget = ask.thinking_budget
        if budget is None and ask.extended:
            budget = self._defaults.efforts.get(ask.effort or "")
        loop_guard = self._defaults.loop_guard
        if budget is None and not reserve and not loop_guard and not ask.stream:
            return None  # and nobody who could ask for the answer: its id is not known before its end
        closer = self._parsers.closer(ask, prompt, "thinking_token_budget" if ask.thinking_budget else None)
        if closer is None:
            return None
        closing = prompts.encoder.control_ids(f"{closer}\n\n")
        line = prompts.encoder.control_ids("\n")
        return ThinkingLimits(
            closer=closer,
            closing=closing,
            closing_line=(*line, *closing),
            budget=budget,
            reserve=reserve,
            loop_guard=loop_guard,
        )

    def _prompt_limit(self, served: Served) -> int:
        return min(self._defaults.max_prompt_tokens, served.max_model_len - 1)

    def _job(self, ask: Ask, prompt: EncodedPrompt, served: Served, *, owner: str, request_id: str) -> Job:
        limit = self._prompt_limit(served)
        if len(prompt.ids) > limit:
            raise PromptTooLong(limit=limit, got=len(prompt.ids))
        room = served.max_model_len - len(prompt.ids)
        wanted = self._defaults.max_new_tokens if ask.max_tokens is None else ask.max_tokens
        return Job(
            request_id=request_id,
            prompt_ids=prompt.ids,
            max_tokens=min(wanted, self._defaults.max_new_tokens_limit, room),
            sampling=self._sampling(ask.sampling, served),
            stop=ask.stop,
            stop_behind=self._parsers.stop_behind(ask, prompt.text),
            owner=owner,
            session_id=ask.session_id,
            subject=prompt.subject,
            end=prompt.end,
            timeout=self._defaults.request_timeout,
            scores=ask.scores,
            echo=ask.repeats_prompt,
        )

    def _sampling(self, wish: SamplingWish, served: Served) -> Sampling:
        """The request's word, else the server's, else the checkpoint's, else the fallback."""
        own, stored = self._defaults, served.generation_defaults
        top_k = _first(wish.top_k, own.top_k, stored.get("top_k"), FALLBACK_TOP_K)
        return Sampling(
            temperature=_first(
                wish.temperature, own.temperature, stored.get("temperature"), FALLBACK_TEMPERATURE
            ),
            top_p=_first(wish.top_p, own.top_p, stored.get("top_p"), FALLBACK_TOP_P),
            top_k=max(0, int(top_k)),
            repetition_penalty=wish.repetition_penalty,
            seed=wish.seed,
            presence=wish.presence,
            frequency=wish.frequency,
            bias=wish.bias,
            min_p=wish.min_p,
            min_tokens=wish.min_tokens,
            stop_ids=wish.stop_ids,
            ignore_eos=wish.ignore_eos,
        )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
