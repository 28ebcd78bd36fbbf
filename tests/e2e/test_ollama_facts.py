"""What Ollama's clients are told of the model that is really served."""

from __future__ import annotations

from typing import Any

import pytest

from maple.choose_engine import DEMO_FOLDER


@pytest.fixture(scope="module")
def server(start_session_server: Any) -> Any:
    return start_session_server("--demo")


def test_the_card_is_the_served_models(server: Any) -> None:
    """Its size is its file's, its weights are counted from its shape; a list, what runs and the details agree."""
    (listed,) = server.request("GET", "/api/tags").json["models"]
    (running,) = server.request("GET", "/api/ps").json["models"]
    shown = server.request("POST", "/api/show", {"model": "maple-sapling"}).json
    assert listed["size"] == running["size"] == (DEMO_FOLDER / "model.safetensors").stat().st_size
    assert listed["details"] == running["details"] == shown["details"]
    assert (listed["details"]["parameter_size"], listed["digest"]) == ("7.2M", running["digest"])
    assert "2-bit" in listed["details"]["quantization_level"]
    assert 7_000_000 < shown["model_info"]["general.parameter_count"] < 7_500_000
