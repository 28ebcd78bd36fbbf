"""The folders and files that the server writes."""

from __future__ import annotations

import pathlib
import shutil
import sqlite3

from maple.checkpoint.disk import existing
from maple.configure import cache_folder
from maple.doctor.check import Check, Finding
from maple.doctor.model import weights_of
from maple.doctor.writable import write_fault
from maple.responses_file import APPLICATION_ID
from maple.responses_store import SCHEME


class CacheCheck(Check):
    """The folder where packs are kept."""

    title = "cache folder"

    def run(self) -> Finding:
        """Whether it can be written, and whether a pack fits."""
        folder = cache_folder(self.settings)
        advice = "set MAPLE_CACHE_DIR to a folder that can be written; without one every start packs anew"
        if folder is None:
            return Finding(level="note", text="none, since no home folder is known", advice=advice)
        if fault := write_fault(folder):
            return Finding(level="note", text=fault, advice=advice)
        free, need = shutil.disk_usage(existing(folder)).free, weights_of(self.settings).stored
        text = f"{folder}, {free / 1e9:.1f} GB free"
        if free < need:
            advice = f"a pack takes {need / 1e9:.1f} GB: make room, or set MAPLE_CACHE_DIR to a larger disk"
            return Finding(level="note", text=text, advice=advice)
        return Finding(level="good", text=text)


class SessionCheck(Check):
    """The folder of saved sessions."""

    title = "sessions"

    def run(self) -> Finding:
        """Whether it can be written."""
        folder = self.settings.session_dir
        if folder is None:
            return Finding(level="good", text="not saved")
        if fault := write_fault(folder):
            advice = "set MAPLE_SESSION_DIR to a folder that can be written, or unset it"
            return Finding(level="bad", text=fault, advice=advice)
        return Finding(level="good", text=str(folder))


class StoreCheck(Check):
    """The file of stored responses."""

    title = "responses"

    def run(self) -> Finding:
        """Whether it can be made, or is one of ours."""
        if self.settings.response_store is None:
            return Finding(level="good", text="not stored")
        file = pathlib.Path(self.settings.response_store.removeprefix(SCHEME))
        if file.is_file():
            fault = _foreign(file)
        else:
            fault = write_fault(file.parent) if file.parent.is_dir() else f"there is no folder {file.parent}"
        if fault:
            advice = "set MAPLE_RESPONSE_STORE to sqlite: and a file in a folder that can be written"
            return Finding(level="bad", text=fault, advice=advice)
        return Finding(level="good", text=str(file))


def _foreign(file: pathlib.Path) -> str:
    """Why a file cannot be the store, read without changing it; empty where it can."""
    try:
        database = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            (mark,) = database.execute("PRAGMA application_id").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        finally:
            database.close()
    except sqlite3.Error as error:
        return f"{file} is not a sound SQLite database ({error})"
    return f"{file} is a database of another program" if tables and mark != APPLICATION_ID else ""
