"""Values of settings that may be secrets, by their shape: what looks like no setting is not written, only a mark that tells whether it changed.

A setting is a word, a number, a list of them, the name of a device or a path. A token, an address with a query or a user in it, JSON, and any
long run of letters and digits that no word explains are withheld, whatever the setting's name is.
"""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from typing import Final

__all__ = ["WITHHELD", "is_plain", "looks_secret", "withheld"]

WITHHELD: Final = "withheld:"
MARK: Final = 12  # hexadecimal digits that tell two values apart
MAX_VALUE: Final = 4096  # of a longer one no setting is expected
_TELLING: Final = re.compile(
    r"(?i)token|secret|passw|pwd|signature|credential|bearer|cookie|api_?key|access_?key|private_?key|(?<![a-z])(?:auth|sig|key)(?![a-z])"
    r"|(?<![a-z0-9])(?:gh[oprsu]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|ASIA|eyJ)|://[^/\s@]{0,400}@|://[^?\s]{0,400}\?|[?&][\w.-]{1,80}="
)
_SHAPE: Final = re.compile(r"[\w.,:;/+^=%~*<>\[\]()| -]*")
_RUN: Final = re.compile(r"[A-Za-z0-9]{16,}")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MASK: Final = re.compile(r"0[xX][0-9a-fA-F]{1,64}|[0-9]{1,32}")
_BASE64: Final = re.compile(r"(?<![\w+/.-])[A-Za-z0-9+][A-Za-z0-9+/]{31,}")  # no path: that begins with its separator
LONGEST_WORD: Final = 32  # letters of one word of a path or name


def withheld(name: str, value: str) -> str:
    """What is written in place of a value: equal for equal values of one setting, and no way back to a value that is hard to guess."""
    return WITHHELD + hashlib.sha256(f"{name}\0{value}".encode("utf-8", "replace")).hexdigest()[:MARK]


def looks_secret(value: str) -> bool:
    """Whether a value of any kind tells that it is a secret, or holds one: the known beginnings of tokens, a user or a query in an address."""
    return _TELLING.search(value[:MAX_VALUE]) is not None


def is_plain(value: str) -> bool:
    """Whether the value of a setting has the shape of one: words, numbers, lists, devices, paths."""
    if len(value) > MAX_VALUE or looks_secret(value) or _SHAPE.fullmatch(value) is None:
        return False
    rest = _UUID.sub(" ", value)
    return not any(map(_is_random, _RUN.findall(rest))) and not any(map(_is_mixed, _BASE64.findall(rest)))


def _is_random(run: str) -> bool:
    """A long run that is neither one word nor a number: letters and digits mixed, both cases mixed, or longer than words are."""
    if _MASK.fullmatch(run):
        return False
    letters = sum(char.isalpha() for char in run)
    if 0 < letters < len(run):
        return True
    changes = sum(one.islower() != two.islower() for one, two in pairwise(run))
    return len(run) > LONGEST_WORD or changes > len(run) // 3


def _is_mixed(run: str) -> bool:
    return any(map(str.isupper, run)) and any(map(str.islower, run)) and any(map(str.isdigit, run))
