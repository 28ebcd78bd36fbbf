"""What the state before the last layer is asked for while training."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.sapling.conversation import Conversation, Exchange, Reply, user
from tools.sapling.hints import Hints, Markers, Probes, hints
from tools.sapling.samples import encoded
from tools.sapling.tokenizer import markers

DEMO = Path(__file__).parents[2] / "maple" / "demo"
TEXTS = {5: "get", 6: "wea", 7: "of", 8: "time", 9: " ", 10: "Wea", 11: "ther", 12: "The", 91: "_"}
MARKERS = Markers(
    tool=90,
    joint=91,
    after_name=(92,),
    end=93,
    user=94,
    end_of_turn=95,
    texts=tuple(TEXTS.get(token, "") for token in range(96)),
)


def test_every_token_of_a_definition_knows_its_tools_first_words() -> None:
    """Up to the next definition or the end of all; the marker itself is no part of it."""
    found = hints([[1, 90, 5, 91, 6, 92, 7, 90, 8, 92, 93, 9]], MARKERS)
    assert found.positions.tolist() == [2, 3, 4, 5, 6, 8, 9]
    assert found.owners.tolist() == [[5, 6]] * 5 + [[8, 8]] * 2


def test_a_joint_behind_the_name_is_none_of_its_own() -> None:
    """A parameter may have one; so may a definition that is cut off."""
    assert hints([[90, 8, 92, 7, 91, 6, 93]], MARKERS).owners.tolist() == [[8, 8]] * 5
    assert hints([[90, 8, 91]], MARKERS).owners.tolist() == [[8, 8]] * 2


def test_the_users_tokens_tell_whether_a_tools_name_has_their_word() -> None:
    """Names count, descriptions and joints do not; without tools nothing is asked."""
    tool = [90, 5, 91, 6, 11, 92, 7, 93, 95]
    found = hints([[*tool, 94, 5, 9, 7, 9, 6, 11, 95, 6], [94, 6, 95]], MARKERS)
    asked = found.positions[len(found.owners) :]
    assert asked.tolist() == list(range(10, 16))
    assert found.mentioned.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def test_a_mention_is_a_whole_word_whatever_its_capitals() -> None:
    """``Weather`` is the tool's; ``wea`` and ``Theweather`` are not."""
    tool = [90, 6, 11, 92, 93, 95]
    found = hints([[*tool, 94, 10, 11, 9, 6, 9, 12, 6, 11, 95]], MARKERS)
    assert found.mentioned.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_positions_are_those_of_the_flat_row() -> None:
    """The second sample's begin where the first one ends."""
    found = hints([[1, 2, 3], [90, 5, 92, 93]], MARKERS)
    assert found.positions.tolist() == [4, 5]


def test_the_demo_models_prompts_have_these_markers() -> None:
    """A real prompt: the definitions' owners are the names' first tokens, and the shared word is found."""
    demo_tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    talk = Conversation(
        exchanges=(
            Exchange(asked=user("What is the weather in Lagos?"), reply=Reply(reasoning="x", content="y")),
        ),
        tools=(tool,),
    )
    ids, _ = encoded(demo_tokenizer, talk)
    found = hints([ids], markers(demo_tokenizer))
    asked = found.positions[len(found.owners) :]
    said = [
        demo_tokenizer.decode([ids[p]])
        for p, m in zip(asked.tolist(), found.mentioned.tolist(), strict=True)
        if m
    ]
    assert said == ["weather"]
    assert {demo_tokenizer.decode(pair) for pair in found.owners.tolist()} == {"getweather"}


def test_the_probes_loss_falls_where_the_state_holds_the_answer() -> None:
    """A state made of the owner's embedding and a flag is learnt in a few steps; the embeddings get no gradient."""
    torch.manual_seed(0)
    embedding = torch.randn(12, 16, requires_grad=True)
    owners, mentioned = torch.arange(8)[:, None].expand(8, 2), torch.tensor([1.0, 0.0] * 4)
    flags = torch.zeros(8, 16)
    flags[:, 0] = 4 * mentioned - 2
    states = torch.cat([embedding.detach()[:8], flags])
    asked = Hints(positions=torch.arange(16), owners=owners, mentioned=mentioned)
    probes = Probes(16)
    optimiser = torch.optim.Adam(probes.parameters(), lr=0.1)
    first = probes((states, states), embedding, asked, 8)
    for _ in range(60):
        optimiser.zero_grad()
        loss = probes((states, states), embedding, asked, 8)
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.1 * float(first.detach())
    assert embedding.grad is None


def test_without_tools_the_loss_is_nothing_and_still_has_gradients() -> None:
    """Every process takes part in averaging, whatever its batch held."""
    probes = Probes(4)
    loss = probes((torch.zeros(0, 4), torch.zeros(0, 4)), torch.zeros(3, 4), hints([[1, 2]], MARKERS), 8)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(weight.grad is not None for weight in probes.parameters())
