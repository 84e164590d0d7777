"""Whether a line says that what just failed is tried again: a reader of files, a connection, a save that is asked for once more."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["tries_again"]

_AGAIN: Final = re.compile(
    r"(?i)\bretrying\b|\b(?:will|to|and|automatic) retry\b|\bretry (?:in|after|no\.?|number|#? ?[0-9])\b|\bretried\b"
    r"|\btr(?:y|ying) (?:it |this )?(?:again|once more)\b"
    r"|\b(?:new|next) attempt\b|\bback(?:ing)? ?off\b|\b(?:succeeded|ok|done|worked|recovered|read) (?:at|on|after|in) (?:attempt|try"
    r"|[0-9]{1,3} (?:attempts|tries|retries))"
)
_COUNTED: Final = re.compile(r"(?i)\b(?:attempt|try|retry|tried|retries)[ #:=]{0,3}([0-9]{1,4})(?: ?/ ?| of )([0-9]{1,4})\b")
_NO_MORE: Final = re.compile(
    r"(?i)\bgiv(?:e|es|ing|en) up\b|\bgave up\b|\bno (?:more|further) (?:retries|retry|attempts|tries)\b"
    r"|\b(?:max(?:imum)?|all|last|final)\b.{0,20}\b(?:retries|retry|attempts?|tries|try)\b|\bretries (?:exceeded|exhausted)\b|\bexhausted\b"
    r"|\bwon't retry\b|\bnot retr(?:y|ying|ied)\b|\bwithout retry"
)


def tries_again(text: str) -> bool:
    """`read failed (attempt 1/5)`, `retrying in 2 s`, `ok after 2 retries`; not `attempt 5/5`, `giving up after 5 retries`."""
    text = text[:1000]
    if _NO_MORE.search(text):
        return False
    if counted := _COUNTED.search(text):
        return int(counted[1]) < int(counted[2])
    return _AGAIN.search(text) is not None
