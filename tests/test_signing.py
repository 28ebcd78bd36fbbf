"""What the server signs, and the key that it keeps for that."""

from __future__ import annotations

import pathlib

from maple.signing import KEY_FILE, signer


def test_the_key_outlives_the_process(tmp_path: pathlib.Path) -> None:
    """One folder signs alike, no other does; the file is its owner's alone."""
    first = signer(tmp_path / "cache")
    assert first("a") == signer(tmp_path / "cache")("a") != first("b")
    assert signer(None)("a") != first("a")
    (kept,) = (tmp_path / "cache").iterdir()
    assert (kept.name, kept.stat().st_mode & 0o777) == (KEY_FILE, 0o600)


def test_a_folder_that_cannot_be_written_costs_the_key_alone(tmp_path: pathlib.Path) -> None:
    """The server starts, and signs with a key of its own."""
    (tmp_path / "file").write_text("")
    assert signer(tmp_path / "file")("a")
