"""docs/configuration.md is kept equal to the settings."""

from __future__ import annotations

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_the_configuration_page_is_complete_and_current() -> None:
    """docs/configuration.md is what tools/configuration_page.py writes from the settings."""
    spec = importlib.util.spec_from_file_location(
        "configuration_page", ROOT / "tools" / "configuration_page.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == module.page()
