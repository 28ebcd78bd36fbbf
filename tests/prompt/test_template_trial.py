"""A checkpoint's template is tried in a child: what takes all the memory or time there does not get to serve."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from maple.prompt import trial
from maple.prompt.template import TemplateInvalid
from maple.prompt.trial import try_template


@pytest.fixture
def checkpoint(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("tokenizer_config.json", "tokenizer.json", "chat_template.jinja"):
        shutil.copyfile(golden_folder / "mlx-2bit" / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{{ messages[0].content }}",
        "{{ raise_exception('no') }}",
        "{{ missing.x.y }}",
        "{{ 'x' * 10 ** 9 }}",
        "{% if %}",
    ],
)
def test_a_template_that_ends_passes(checkpoint: pathlib.Path, source: str) -> None:
    """Whether it renders, refuses, fails or does not compile is for others to say."""
    (checkpoint / "chat_template.jinja").write_text(source)
    try_template(checkpoint)


def test_the_checkpoints_own_passes(checkpoint: pathlib.Path) -> None:
    """With tools, calls and reasoning."""
    try_template(checkpoint)


GROWING = "{% for i in range(1000) %}{% set ns.x = [ns.x, 'x' * 60000000 ~ i] %}{% endfor %}"
ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source", ["{% set ns = namespace(x=[]) %}" + GROWING, ENDLESS], ids=["memory", "time"]
)
def test_a_template_that_takes_everything_is_refused(
    checkpoint: pathlib.Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """By the operating system, whatever our own bounds make of it."""
    monkeypatch.setattr(trial, "PROCESSOR_SECONDS", 4)
    (checkpoint / "chat_template.jinja").write_text(source)
    with pytest.raises(TemplateInvalid, match="GiB of memory and 4 s of processor time"):
        try_template(checkpoint)
