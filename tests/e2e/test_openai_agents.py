"""The openai-agents package runs a loop of two tools against a real server, streamed and not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import agents
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from agents.run import CallModelData, ModelInputData
from openai import AsyncOpenAI

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
ANSWER = "It is 31 degrees in Lagos, which is 87.8 in Fahrenheit."
QUESTION = "How warm is it in Lagos, in Fahrenheit?"


def _block(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCRIPT = (
    {
        "match": "results so far: 0",
        "pieces": ["Look first.", "</think>", _block("get_weather", city="Lagos")],
    },
    {"match": "results so far: 1", "pieces": ["Convert.", "</think>", _block("to_fahrenheit", celsius=31)]},
    {"match": "results so far: 2", "pieces": ["Done.", "</think>", ANSWER]},
)


def count_results(data: CallModelData[Any]) -> ModelInputData:
    """Append a message that tells how far the loop is: recordings are chosen by the last user message."""
    results = sum(item.get("type") == "function_call_output" for item in data.model_data.input)
    told: Any = {"role": "user", "content": f"results so far: {results}"}
    return ModelInputData(input=[*data.model_data.input, told], instructions=data.model_data.instructions)


class Toolbox:
    """Two tools that note how they were called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    @property
    def tools(self) -> list[agents.Tool]:
        @agents.function_tool
        def get_weather(city: str) -> str:
            """Temperature at a place, in degrees Celsius."""
            self.calls.append(("get_weather", city))
            return "31"

        @agents.function_tool
        def to_fahrenheit(celsius: int) -> str:
            """Degrees Celsius in Fahrenheit."""
            self.calls.append(("to_fahrenheit", celsius))
            return str(celsius * 1.8 + 32)

        return [get_weather, to_fahrenheit]


Work = Callable[[Agent[Any], RunConfig], Any]


def run(server: Server, kind: str, tools: Toolbox, work: Work) -> Any:
    """Run ``work(agent, config)`` with an agent of that kind of model on the server."""

    async def main() -> Any:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            agent = Agent(
                name="Thermometer",
                instructions="Use the tools.",
                tools=tools.tools,
                model=MODELS[kind](model="maple-preview", openai_client=client),
                model_settings=ModelSettings(temperature=0),
            )
            config = RunConfig(tracing_disabled=True, call_model_input_filter=count_results)
            return await work(agent, config)

    return asyncio.run(main())


async def whole(agent: Agent[Any], config: RunConfig) -> Any:
    """The final output of a run without streaming."""
    result = await Runner.run(agent, QUESTION, run_config=config, max_turns=5)
    return result.final_output


async def streamed(agent: Agent[Any], config: RunConfig) -> Any:
    """The final output of a streamed run, all of whose events are taken; its deltas end with that output."""
    result = Runner.run_streamed(agent, QUESTION, run_config=config, max_turns=5)
    raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    text = "".join(event.delta for event in raw if event.type == "response.output_text.delta")
    assert text == result.final_output
    return result.final_output


@pytest.fixture(scope="module")
def scripted(start_session_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    script = tmp_path_factory.mktemp("agents") / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), encoding="utf-8")
    return start_session_server("--scripted", str(script))


@pytest.mark.parametrize("work", [whole, streamed])
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_loop_of_two_tools_comes_to_its_answer(scripted: Server, kind: str, work: Work) -> None:
    """Call, result, call, result, answer, over responses and over chat."""
    tools = Toolbox()
    assert run(scripted, kind, tools, work) == ANSWER
    assert tools.calls == [("get_weather", "Lagos"), ("to_fahrenheit", 31)]


TURNS = {"get_weather": "What is the weather in Berlin?", "get_time": "What time is it in Madrid?"}


async def talk(agent: Agent[Any], config: RunConfig) -> list[str]:
    """The answers of a conversation of two turns, each a loop of its own."""
    said: list[Any] = []
    outputs: list[str] = []
    for tool, question in TURNS.items():
        said.append({"role": "user", "content": question})
        result = await Runner.run(pointed_at(agent, tool), said, run_config=config, max_turns=4)
        outputs.append(result.final_output)
        said = result.to_input_list()
    return outputs


async def talk_streamed(agent: Agent[Any], config: RunConfig) -> list[str]:
    """The same, streamed."""
    said: list[Any] = []
    outputs: list[str] = []
    for tool, question in TURNS.items():
        said.append({"role": "user", "content": question})
        result = Runner.run_streamed(pointed_at(agent, tool), said, run_config=config, max_turns=4)
        async for _ in result.stream_events():
            pass
        outputs.append(result.final_output)
        said = result.to_input_list()
    return outputs


def pointed_at(agent: Agent[Any], tool: str) -> Agent[Any]:
    """An agent whose first step names its tool: which of two fits is more than so small a model always knows."""
    return agent.clone(model_settings=ModelSettings(temperature=0, tool_choice=tool))


def plain_tool(
    name: str, description: str, result: dict[str, str], calls: list[tuple[str, str]]
) -> agents.FunctionTool:
    """A tool with as plain a schema as the demo model has seen: one city, no titles."""

    async def invoke(_: Any, arguments: str) -> str:
        calls.append((name, json.loads(arguments)["city"]))
        return json.dumps(result)

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return agents.FunctionTool(
        name=name,
        description=description,
        params_json_schema=schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


@pytest.mark.parametrize("work", [talk, talk_streamed])
@pytest.mark.parametrize("kind", list(MODELS))
def test_the_demo_model_uses_two_tools(demo_server: Server, kind: str, work: Work) -> None:
    """A real model behind the same loop: two tools are called in turn, and answered from."""
    calls: list[tuple[str, str]] = []

    tools: list[agents.Tool] = [
        plain_tool("get_weather", "Get the current weather for a city.", {"weather": "sunny"}, calls),
        plain_tool("get_time", "Get the current time in a city.", {"time": "late"}, calls),
    ]

    async def main() -> Any:
        async with AsyncOpenAI(base_url=demo_server.base_url, api_key="any", max_retries=0) as client:
            agent = Agent(
                name="Traveller",
                tools=tools,
                model=MODELS[kind](model="maple-sapling", openai_client=client),
            )
            return await work(agent, RunConfig(tracing_disabled=True))

    weather, time = asyncio.run(main())
    assert calls == [("get_weather", "Berlin"), ("get_time", "Madrid")]
    assert "sunny" in weather
    assert "late" in time
