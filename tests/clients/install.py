"""Install the clients that the tests beside this run: ``python tests/clients/install.py FOLDER``. Needs npm and uv."""

from __future__ import annotations

import pathlib
import subprocess
import sys

NPM = {
    "agents": ("@openai/codex@0.171.0", "opencode-ai@1.18.33", "cline@3.0.65", "@qwen-code/qwen-code@0.24.4"),
    "claude": ("@anthropic-ai/claude-code@2.1.332",),
    "anthropic": ("@anthropic-ai/sdk@1.14.0",),
    "ollama": ("ollama@0.6.4",),
    "ai-sdk": ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"),
}
PYTHON = {
    "pydantic-ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "llama-index": ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
    "instructor": ("instructor==1.17.0",),
    "dspy": ("dspy==3.4.1",),
    "smolagents": ("smolagents[openai]==1.26.0",),
    "aider": ("aider-chat==0.86.2",),
    "llm": ("llm==0.36",),
    "lm-eval": ("lm_eval[api]==0.4.13",),
}
"""Each in a folder or environment of its own: they do not agree about what they stand on."""


def install(folder: pathlib.Path) -> None:
    """Make ``FOLDER/npm`` and ``FOLDER/python``; what is there already is left as it is."""
    for name, packages in NPM.items():
        if not (folder / "npm" / name).exists():
            _run(
                "npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder / "npm" / name), *packages
            )
    opencode = folder / "npm" / "agents" / "node_modules" / "opencode-ai"
    _run("node", str(opencode / "postinstall.mjs"))  # npm runs no package's own script unasked
    for name, requirements in PYTHON.items():
        if not (folder / "python" / name).exists():
            _run("uv", "venv", "--quiet", "--python", sys.executable, str(folder / "python" / name))
            _run("uv", "pip", "install", "--quiet", "--python", str(folder / "python" / name), *requirements)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    install(pathlib.Path(sys.argv[1]))
