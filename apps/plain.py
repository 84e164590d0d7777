"""One line on a terminal, whatever the evidence says: the one place through which all text for people passes.

File names, host names and log lines come from outside. A line break in one would forge a line of the answer, an escape sequence would drive
the terminal, a mark of writing direction would turn what follows around.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata

__all__ = ["Document", "complain", "one_line", "safe_json"]

_ODD = re.compile(r"[^\n\x20-\x7e]")


class Document(str):
    """A text of several lines that is safe as it is: JSON, whose strings are escaped."""

    __slots__ = ()


def one_line(text: str) -> str:
    """The text on one line: what cannot be printed is spelled out (a line break as `\\n`), so that the name can still be told."""
    return text if isinstance(text, Document) or text.isprintable() else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\t" or unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


def safe_json(text: str) -> str:
    """A JSON text whose strings hold nothing that would drive a terminal or a viewer: escaped, which changes no value."""
    return _ODD.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def complain(text: str) -> None:
    """One line on stderr, where there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"rca: {one_line(text)}\n")
