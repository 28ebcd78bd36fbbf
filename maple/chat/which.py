"""Which server a conversation is with: the one named, the one that runs here, or one of its own."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

from maple.chat.child import own_server
from maple.chat.loading import await_model, bars
from maple.chat.screen import Screen
from maple.checkpoint.locate import locate_here
from maple.choose_engine import model_source
from maple.client import Remote, Unreachable
from maple.command import agreed, given_flags, read_configuration
from maple.errors import CommandFailed, UsageError
from maple.settings import Settings, flag_name

_SIZES = {"deepgrove/maple-preview-2bit-mlx": "5.3 GB", "deepgrove/maple-preview": "40.4 GB"}


@contextlib.contextmanager
def server(given: argparse.Namespace, screen: Screen | None) -> Iterator[Remote]:
    """A server that answers; ``screen`` hears which it is.

    Without --url and flags it is the one at this machine's port, if one runs there. One that is named need not answer
    yet. Raises UsageError, and CommandFailed where none can be started.
    """
    flags, key = given_flags(given), os.environ.get("MAPLE_API_KEY")
    if given.url and flags:
        raise UsageError(
            f"{flag_name(next(iter(flags)))} is a setting of a server to start: leave out --url, or it"
        )
    if given.url:
        yield _introduced(Remote(given.url, key), given.url, screen)
        return
    settings = read_configuration(given).settings  # a wrong flag is told before anything starts
    here = f"http://127.0.0.1:{settings.port or 8000}"
    if not flags and _runs(Remote(here, key)):
        yield _introduced(Remote(here, key), here, screen)
        return
    _ask_to_fetch(settings)
    if screen:
        screen.say("starting a server …", dim=True)
    words = [f"{flag_name(name)}={text}" for name, text in flags.items()]
    with own_server(words, lambda url: bars(Remote(url, None))) as own:
        yield _introduced(Remote(own, None), own, screen)


def _introduced(remote: Remote, url: str, screen: Screen | None) -> Remote:
    """Wait for its model, and say which that is; one that does not answer yet may do so when it is asked."""
    try:
        health = await_model(remote)
    except Unreachable as error:
        if screen:
            screen.say(f"maple: {error}", dim=True)
        return remote
    if screen:
        screen.say(f"{health['model']} ({health['model_path']}) at {url}", dim=True)
    return remote


def _runs(remote: Remote) -> bool:
    """Whether a Maple answers there."""
    try:
        return bool(remote.read("/healthz").get("service") == "maple")
    except (CommandFailed, AttributeError):  # nobody, or somebody else
        return False


def _ask_to_fetch(settings: Settings) -> None:
    """Ask before gigabytes. Raises CommandFailed where they are not wanted."""
    source = str(model_source(settings))
    if locate_here(source, settings.revision) is not None:
        return
    size = f" ({_SIZES[source]})" if source in _SIZES else ""
    if not agreed(f"{source}{size} is not on this machine yet. Fetch it?"):
        raise CommandFailed("nothing was fetched; maple chat --demo talks to the small model that is here")
