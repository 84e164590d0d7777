"""Whether only the rank's own program can have brought a fault about: no device and no network of another host does such a thing.

1. It used up memory, or raised what Python raises for a wrong type, key, name or number.
2. torch's RuntimeErrors say what they are about: shapes, sizes, types and the graph of a model are the program's.
3. An assertion is about whatever it says: one that speaks of devices, of communication or of numbers that are not finite may be about another's
   fault. Other classes may be what communication or a driver raised.
"""

from __future__ import annotations

import re
from typing import Final

from rca.analyses._faults import Fault

__all__ = ["is_programs_own"]

MEMORY_USED_UP: Final = frozenset({"gpu_memory_used_up", "host_memory_used_up"})
RAISED: Final = frozenset({"raised", "in_data_code"})
_ITS_OWN: Final = re.compile(r"^(?:builtins\.)?(?:Value|Type|Key|Index|Attribute|Name|Import|ModuleNotFound|ZeroDivision)Error$")
_OF_TENSORS: Final = re.compile(
    r"(?i)\bshapes?\b|\bsizes? (?:of|mismatch)|\bmust match\b|\bscalar type\b|\bdtypes?\b|\bdimensions?\b|\bout of (?:range|bounds)\b|"
    r"\bsame device\b|\bbackward through the graph\b|\brequires? grad\b|\binplace operation\b|\bloading state_dict\b"
)
_OF_OTHERS: Final = re.compile(
    r"(?i)nccl|gloo|mpi\b|cuda|gpu|\bdevice|\bdist(?:ributed)?\b|process.?group|communicat|collective|time.?out|timed out|"
    r"\bpeers?\b|connect|heartbeat|alive|\bnode|\bhost|finite|\bnan\b|\binf\b|checksum|hash"
)


def is_programs_own(fault: Fault) -> bool:
    """Whether nothing but the rank's own program, or what it was given to work on, can have done it."""
    if fault.kind in MEMORY_USED_UP:
        return True
    if fault.kind not in RAISED:
        return False
    name, text = (fault.line.exception or "").removeprefix("builtins."), fault.line.text
    if name == "RuntimeError":
        return _OF_TENSORS.search(text) is not None and _OF_OTHERS.search(text.replace("same device", "")) is None
    if name == "AssertionError":
        return bool(text.strip()) and _OF_OTHERS.search(text) is None
    return _ITS_OWN.search(name) is not None
