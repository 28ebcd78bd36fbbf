"""What the chat page suggests on an empty page, where the served model is good at little."""

from __future__ import annotations

from typing import Annotated

import attrs
from maple_protocols.rules import Doc


@attrs.frozen(kw_only=True)
class Idea:
    """Something that the served model can do. ``tools`` asks for the page's own clock and calculator."""

    text: str
    tools: bool


@attrs.frozen(kw_only=True)
class Invitation:
    """What is said of a model beside its name, and what can be asked of it."""

    notice: str
    ideas: Annotated[tuple[Idea, ...], Doc("Questions that it answers well.")]


DEMO = Invitation(
    notice=(
        "This is the small demonstration model: it adds, knows a few facts and calls tools. For Maple-Preview itself"
        " (5.3 GB to fetch, 7 GB of memory) stop this server and start python -m maple --api-level extended."
    ),
    ideas=(
        Idea(text="What is 17 * 23?", tools=False),
        Idea(text="What is the capital of Norway?", tools=False),
        Idea(text="What time is it in Tokyo?", tools=True),
    ),
)
"""Of the embedded model, whose card has what it was taught."""
