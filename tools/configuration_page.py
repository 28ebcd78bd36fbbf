"""Write docs/configuration.md from the settings; a test keeps the two equal.

usage: python tools/configuration_page.py
"""

from __future__ import annotations

import math
import pathlib
import sys

import attrs

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from maple.configure import BOOL_WORDS  # noqa: E402
from maple.settings import Settings, Spec, flag_name, specs, variable_name  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"
INTRODUCTION = f"""# Configuration

Every setting is a variable and a flag of the same words; flags win. `maple config` prints what is in force and where it
came from. A blank variable means the default, an unknown `MAPLE_` variable or a bad value stops the start with one line
that names it. Booleans are {BOOL_WORDS}; lists are separated by commas or spaces. Keys are read from a
variable or a file, never from the command line, where other users could see them.

| variable | flag | default | values | meaning |
|---|---|---|---|---|
"""
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
    rows = [_row(field, specs()[field.name]) for field in attrs.fields(Settings)]
    return INTRODUCTION + "\n".join(row for row in rows if row) + "\n" + OUTRO


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
