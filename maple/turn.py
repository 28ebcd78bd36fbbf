"""The one path of a request: Ask → prompt ids → Job → pieces → parser chain → turn events.

Streaming or not is unknown here; a writer downstream decides. Everything runs on the event loop's thread,
except templating and tokenising, which run in the prompt pool.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

import attrs
import structlog
from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ParserEvent, ToolCall
from maple_plugins.parser import ParserContext, ReasoningParser, TellsCallForm, TellsCloser, ToolParser
from maple_plugins.parsers.none import NoTools
from maple_protocols.adapter import Done, FinishReason, Identity, NumberedCall, TurnEvent, Usage
from maple_protocols.ask import AnswerForm, Ask, Conversation, SamplingWish
from maple_protocols.openai.tokens import TokenFacts
from maple_protocols.timings import Progress

from maple.engine.api import (
    Engine,
    EngineStatus,
    Finish,
    Job,
    ModelLoading,
    PromptTooLong,
    Sampling,
    Served,
    Ticket,
)
from maple.engine.thinking import ThinkingLimits
from maple.prompt.encode import EncodedPrompt, Prepare, PromptPool
from maple.prompt.grammar import Calls, GrammarRefused
from maple.turn_times import spent

log = structlog.get_logger(__name__)

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


def _unsigned(_: str) -> str:
    return ""


@attrs.frozen(kw_only=True)
class ParserPair:
    """The parser classes that every conversation of this server goes through."""

    reasoning: type[ReasoningParser]
    tools: type[ToolParser]

    def chain(self, ask: Ask, prompt: str) -> Chain | None:
        """Parsers for one answer to the rendered prompt; None for raw prompts: their text is the answer."""
        if not isinstance(ask.prompt, Conversation):
            return None
        context = ParserContext(
            in_reasoning=self.reasoning.prompt_ends_inside(prompt),
            tools=ask.prompt.tool_specs,
            keeps_line=ask.extended,
            continues=ask.prompt.ending == "open",
        )
        as_text = ask.extended and not context.tools
        return Chain(self.reasoning(context), NoTools(context) if as_text else self.tools(context))

    def stop_behind(self, ask: Ask, prompt: str) -> str | None:
        """What must come before stop strings apply: the end of reasoning, where the parser tells how it ends."""
        waits = ask.extended and isinstance(ask.prompt, Conversation) and bool(ask.stop)
        if not waits or not issubclass(self.reasoning, TellsCloser):
            return None
        return self.reasoning.closer() if self.reasoning.prompt_ends_inside(prompt) else None

    def closer(self, ask: Ask, prompt: str, param: str | None) -> str | None:
        """What ends the reasoning that ``prompt`` leaves open; None without any.

        Where the parser does not tell, GrammarRefused for ``param``, if that is what asked.
        """
        if not isinstance(ask.prompt, Conversation) or not self.reasoning.prompt_ends_inside(prompt):
            return None
        if issubclass(self.reasoning, TellsCloser):
            return self.reasoning.closer()
        if param is None:
            return None
        reason = f"the reasoning parser {self.reasoning.__name__} does not tell how reasoning ends"
        raise GrammarRefused(param=param, reason=reason)

    def held_to(self, ask: Ask) -> AnswerForm | Calls | None:
        """What the answer has to be: calls where they are forced, else its form. Raises GrammarRefused."""
        if ask.forced_calls is None or not isinstance(ask.prompt, Conversation):
            return ask.form
        if not issubclass(self.tools, TellsCallForm):
            reason = f"the tool parser {self.tools.__name__} does not tell how a call is written"
            raise GrammarRefused(param="tool_choice", reason=reason)
        return Calls(form=self.tools.call_form(), tools=ask.prompt.tool_specs, forced=ask.forced_calls)

    def answer_behind(self, ask: Ask, prompt: str) -> str | None:
        """What comes before the answer that a form is for; None where it begins at once. Raises GrammarRefused."""
        return self.closer(ask, prompt, ask.form.param if ask.form else "tool_choice")


class Turns:
    """Opens turns. One per server; `prompts` is set once the tokenizer is loaded."""

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
        """One line, once `status` is "error"."""
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

    async def open(self, ask: Ask, *, owner: str, request_id: str, prepare: Prepare | None = None) -> Turn:
        """Render, tokenise, check the length and submit. A cancellation meanwhile is counted by the engine.

        `prepare` runs the first two off the loop, by default in the prompts' own pool. Raises PromptTooLong, or
        whatever `Engine.submit` raises.
        """
        served = self.engine.served
        if served is None or self.prompts is None:
            raise ModelLoading
        thinking = self._thinking(ask)
        try:
            prompt = await self.prompts.encode(
                ask.prompt, thinking=thinking, limit=self._prompt_limit(served), prepare=prepare
            )
        except asyncio.CancelledError:  # there is no ticket yet that could count it
            self.engine.count_cancelled()
            raise
        job = self._job(ask, prompt, served, owner=owner, request_id=request_id)
        if (wanted := self._parsers.held_to(ask)) is not None:
            behind = self._parsers.answer_behind(ask, prompt.text)
            grammar = await self.prompts.compile(wanted, served.folder, served.eos_token_ids)
            job = attrs.evolve(job, grammar=grammar, grammar_behind=behind)
        chain = self._parsers.chain(ask, prompt.text)
        identity = Identity(
            key=secrets.token_hex(16),
            created=int(time.time()),
            model=ask.model or self._defaults.model_id,
            temperature=job.sampling.temperature,
            top_p=job.sampling.top_p,
            request_id=request_id,
            sign=self._sign,
        )
        job = attrs.evolve(
            job, thinking=self._thinking_limits(ask, prompt.text, self.prompts, job.max_tokens)
        )
        ticket = self.engine.submit(job)
        room = served.max_model_len - len(prompt.ids)
        fills = job.max_tokens == room != ask.max_tokens
        return Turn(identity=identity, request_id=request_id, ticket=ticket, chain=chain, fills_window=fills)

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
        if budget is None and not reserve and not loop_guard:
            return None
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
        wanted = ask.max_tokens or self._defaults.max_new_tokens
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


class Turn:
    """One admitted or waiting request. Iterate it once; `cancel` at any time."""

    def __init__(
        self,
        *,
        identity: Identity,
        request_id: str,
        ticket: Ticket,
        chain: Chain | None,
        fills_window: bool = False,
    ) -> None:
        self.identity = identity
        self._fills_window = fills_window
        self.finish: Finish | None = None
        """The engine's own account, once the turn is done."""
        self.reasoning_tokens = 0
        self._request_id = request_id
        self._ticket = ticket
        self._chain = chain
        self._offsets: list[int] = []
        self._calls = 0

    async def admitted(self) -> None:
        """Return when the job has its slot; raises an EngineError where it never gets one."""
        await self._ticket.admitted()

    def progress(self) -> Progress:
        """How far the prompt is; all of it is computed once anything has come of it."""
        status = self._ticket.status()
        return Progress(
            state="queued" if status.state == "queued" else "prefill",
            position=status.position,
            total=status.total,
            cached=status.cached,
            processed=status.processed,
            time_ms=round(status.seconds * 1000),
        )

    def cancel(self) -> None:
        """Drop the job within one token. Idempotent, and harmless once the turn is done."""
        self._ticket.cancel()

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Yield reasoning, content and calls in generation order, then one Done. Raises EngineError."""
        chain = self._chain
        feed: Callable[[str], Iterable[ParserEvent]] = chain.feed if chain else _as_content
        try:
            async for item in self._ticket:
                if isinstance(item, Finish):
                    for event in chain.close(item.reason) if chain else ():
                        yield self._numbered(event)
                    yield self._done(item)
                    return
                self._offsets.extend(item.offsets)
                if item.text:
                    for event in feed(item.text):
                        yield self._numbered(event)
        finally:
            self._log_fault()

    def _log_fault(self) -> None:
        """Malformed markup has gone back as text; that the model wrote some is for operators to know."""
        if self._chain is not None and self._chain.fault is not None:
            log.warning("turn.markup_malformed", request_id=self._request_id, fault=self._chain.fault)

    def _numbered(self, event: ParserEvent) -> TurnEvent:
        if not isinstance(event, ToolCall):
            return event
        call = NumberedCall(
            index=self._calls, id=f"call_{secrets.token_hex(12)}", name=event.name, arguments=event.arguments
        )
        self._calls += 1
        return call

    def _done(self, finish: Finish) -> Done:
        self.finish = finish
        self.reasoning_tokens = self._count_reasoning()
        reason: FinishReason = finish.reason
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        usage = Usage(
            prompt_tokens=finish.prompt_tokens,
            completion_tokens=finish.completion_tokens,
            cached_tokens=finish.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )
        return Done(
            finish=reason,
            usage=usage,
            at=int(time.time()),
            timings=spent(finish),
            stop=finish.stop,
            window=reason == "length" and self._fills_window,
        )

    def _count_reasoning(self) -> int:
        """Ids whose text begins before the closing marker does; all of them while the block is open."""
        if self._chain is None:
            return 0
        end = self._chain.reasoning_end
        return len(self._offsets) if end is None else sum(offset < end for offset in self._offsets)


def _as_content(text: str) -> tuple[ContentDelta]:
    return (ContentDelta(text),)
