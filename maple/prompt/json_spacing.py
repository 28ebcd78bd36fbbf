"""JSON text spelt anew as a template would spell it: what a client re-spelt is again what the model wrote."""

from __future__ import annotations

import json
import re

import attrs

_LEXEMES = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[ \t\n\r]++|[,:]')
_SURROGATE = re.compile("[\ud800-\udfff]")


@attrs.frozen
class JsonSpacing:
    """What stands between two items, and between a key and its value."""

    item: str
    key: str

    def respell(self, text: str) -> str:
        """JSON text of the same value: spaced like this, non-ASCII as it is; order, numbers and doublets stay."""
        return _LEXEMES.sub(self._lexeme, text)

    def _lexeme(self, found: re.Match[str]) -> str:
        lexeme = found[0]
        if lexeme[0] == '"':
            return _plain(lexeme) if "\\" in lexeme else lexeme
        return self.item if lexeme == "," else self.key if lexeme == ":" else ""


SPACINGS = (JsonSpacing(", ", ": "), JsonSpacing(",", ":"))


def _plain(string: str) -> str:
    """A JSON string with no more escapes than it needs; half a surrogate pair can only be an escape."""
    value = json.loads(string)
    return string if _SURROGATE.search(value) else json.dumps(value, ensure_ascii=False)
