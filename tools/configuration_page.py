"""Write docs/configuration.md from the settings; a test keeps the two equal.

usage: python tools/configuration_page.py
"""

from __future__ import annotations

import math
import pathlib
import sys
import textwrap

import attrs

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from maple.configure import BOOL_WORDS  # noqa: E402
from maple.settings import Settings, Spec, flag_name, specs, variable_name  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"
INTRODUCTION = f"""# Configuration

Every setting is a variable and a flag of the same words; flags win. `maple config` prints what is in force and where it
came from. A blank variable means the default (but for `MAPLE_PREFIX_DIR`, which it turns off), an unknown `MAPLE_` variable or a bad value stops the start with one line
that names it. Booleans are {BOOL_WORDS}; lists are separated by commas or spaces. Keys are read from a
variable or a file, never from the command line, where other users could see them.

```bash
MAPLE_MAX_BATCH=4 python3 -m maple config --port 8001 | grep -E "MAX_BATCH|PORT"
```

```text
MAPLE_PORT                   8001                             flag
MAPLE_MAX_BATCH              4                                environment
```
"""
HEADING = "| variable | flag | default | values | meaning |\n|---|---|---|---|---|"
GROUPS = {
    "model_path": (
        "The model",
        (
            "A *checkpoint* is a folder of weights with its tokenizer and chat template; a *hub id* names one on the Hugging Face "
            "hub. The *output head* turns the last layer into the likelihood of each token. *Activations* are the numbers that "
            "flow between layers, `int8x2` in two bytes; the *KV cache* holds keys and values of the tokens so far."
        ),
    ),
    "host": (
        "Where it listens, and who may come",
        "An *origin* is the scheme, name and port of a web page; a *CIDR* such as `10.0.0.0/8` is a range of addresses.",
    ),
    "log_level": (
        "The log",
        "On a terminal it begins at `warning` unless a level is set, elsewhere at `info`.",
    ),
    "max_new_tokens": (
        "Answers",
        (
            "A *token* is a piece of text, about three quarters of an English word. *Temperature* is how freely tokens are drawn, "
            "`top_p` and `top_k` how many are in the draw. *Reasoning* is what the model thinks before it answers."
        ),
    ),
    "reasoning_parser": (
        "What is understood",
        (
            "A *parser* finds reasoning and tool calls in the model's text. The *reference* level refuses what it does not serve; "
            "*extended* serves what agents and SDKs send."
        ),
    ),
    "max_batch": (
        "Queue and memory",
        (
            "Requests that generate have a *slot* each; the others wait in the *queue*. A *prefix* is the beginning of a prompt "
            "that was computed before and need not be computed again."
        ),
    ),
    "session_dir": (
        "What is kept",
        "A *session* is what was computed of one conversation, kept so that it goes on after a restart.",
    ),
    "engine": ("Several machines", "See [scaling](scaling.md)."),
    "request_timeout": (
        "Time limits and pages",
        "*Draining* is finishing what runs before the process ends.",
    ),
}
"""The first setting of each part of the page, its heading, and the words that it uses."""
OUTRO = """
`--demo`, `--scripted FILE` and `--open` are flags only. `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` keep their meaning.

Variables that Kubernetes sets beside a service called maple (`MAPLE_SERVICE_…`, `MAPLE_PORT_…`, a `MAPLE_PORT` that
starts with `tcp://`) are passed over with a warning, and so are names that clients read: unknown ones that end in
`_BASE_URL`, `_API_BASE` or `_ENDPOINT`.

## Which model

Without `MAPLE_MODEL_PATH` a server on a CPU fetches `deepgrove/maple-preview-2bit-mlx` (5.3 GB), unless
`deepgrove/maple-preview` (bf16, about 40 GB) is the one that is in the hub's cache already; on a GPU it is always the
latter.

## Sampling defaults

A request's own value wins; then `MAPLE_TEMPERATURE`, `MAPLE_TOP_P` or `MAPLE_TOP_K` where set; then the checkpoint's
generation_config.json; then temperature 0.6, top_p 0.95, top_k 20. DeepGrove advises temperature 1.0 for
Maple-Preview.
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION.rstrip("\n")]
    for field in attrs.fields(Settings):
        if field.name in GROUPS:
            title, words = GROUPS[field.name]
            lines += ["", f"## {title}", "", *textwrap.wrap(words, 120), *([""] if words else []), HEADING]
        lines += [row] if (row := _row(field, specs()[field.name])) else []
    return "\n".join(lines) + "\n" + OUTRO


def _row(field: attrs.Attribute[object], spec: Spec) -> str:
    if not spec.variable:
        return ""
    flag = f"`{flag_name(field.name)}`" if spec.flag else "none"
    return f"| `{variable_name(field.name)}` | {flag} | {_default(field.default)} | {_values(spec)} | {spec.help} |"


def _default(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and value:
        return "..".join(map(str, dict.fromkeys(value)))
    if isinstance(value, float):
        return f"{value:g}"
    return f"`{value}`" if value != () else "empty"


def _values(spec: Spec) -> str:
    if spec.choices:
        return ", ".join(f"`{choice}`" for choice in spec.choices)
    words = {
        "auto_bool": "`auto` or a boolean",
        "bool": "boolean",
        "networks": "addresses, CIDRs",
        "source": "text",
        "auto_integer": "auto or an integer",
        "path_or_off": "path, or blank",
    }.get(spec.kind, spec.kind)
    if math.isinf(spec.low) and math.isinf(spec.high):
        return words
    return f"{words}, {_range(spec)}"


def _range(spec: Spec) -> str:
    if math.isinf(spec.high):
        return f"at least {spec.low:g}"
    return f"{spec.low:g} to {spec.high:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
