"""A checkpoint's template is tried once in a process of its own, whose memory and time have an end.

What a rendering is weighed for (see ``bounds``) is what is known to grow. For what is not, there is this: a template
that takes all the memory takes that of a child, before the first client comes.
"""

from __future__ import annotations

import pathlib
import resource
import subprocess
import sys

from maple.prompt.control_text import ControlText
from maple.prompt.files import read_config, template_source
from maple.prompt.template import ChatTemplate, TemplateFailed, TemplateInvalid, TemplateRefused

MEMORY_BYTES = 2 << 30
PROCESSOR_SECONDS = 10
HANG_SECONDS = 600.0
"""For a child that neither computes nor ends."""

_OWN = pathlib.Path(__file__).parents[1]
_CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}
_MESSAGES = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "", "reasoning_content": "So.", "tool_calls": [_CALL]},
    {"role": "tool", "content": "Seen."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
)


def try_template(folder: pathlib.Path) -> None:
    """Render a conversation in a child. Blocks meanwhile. Raises TemplateInvalid where that takes too much."""
    if folder.resolve().is_relative_to(_OWN):
        return  # the demo's is our own
    source = template_source(folder, read_config(folder))
    command = [sys.executable, "-P", "-m", __name__, str(PROCESSOR_SECONDS)]
    try:
        done = subprocess.run(  # noqa: S603 -- this very module
            command, input=source.encode(), capture_output=True, timeout=HANG_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise TemplateInvalid(f"it did not come to an end in {HANG_SECONDS:g} s") from None
    if done.returncode:
        limits = f"{MEMORY_BYTES >> 30} GiB of memory and {PROCESSOR_SECONDS} s of processor time"
        raise TemplateInvalid(f"one rendering takes more than {limits}")


def main() -> None:
    """The child: the template comes by stdin. How it renders does not matter, only that it does or refuses to."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        template = ChatTemplate(sys.stdin.buffer.read().decode())
        variables = {"messages": list(_MESSAGES), "tools": [_TOOL], "add_generation_prompt": True}
        for _ in template.render(variables, ControlText({})):
            continue
    except (TemplateFailed, TemplateInvalid, TemplateRefused) as error:
        if isinstance(error.__cause__, MemoryError):
            raise


if __name__ == "__main__":
    main()
