"""The parsers of a turn, and what their markers tell the engine."""

from __future__ import annotations

import attrs
from maple_plugins.compose import Chain
from maple_plugins.parser import ParserContext, ReasoningParser, TellsCallForm, TellsCloser, ToolParser
from maple_plugins.parsers.none import NoTools
from maple_protocols.ask import AnswerForm, Ask, Conversation

from maple.prompt.grammar import Calls, GrammarRefused


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
        return self.closer(ask, prompt, None) if ask.extended and ask.stop else None

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
