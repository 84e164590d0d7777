"""Lines of the fifth NVLink (Xid 144-150): unit, link and two words of bits, and what the vendor's sheet says of them.

The sheet knows a line by its Xid, its unit, bits of the first word and the whole second one. Which bits changed with driver 575: a line of
which the driver is not known is not looked up. Where the line's own word for the severity and the sheet's differ, the sheet means another fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rca.catalogues import cached, rows

__all__ = ["NVLINK5_XIDS", "Decoded", "NvlinkLine", "decoded", "nvlink_line"]

NVLINK5_XIDS: Final = range(144, 151)
NEW_BITS: Final = 575  # the first driver that numbers the units anew
_SUB_CODE: Final = 20, 0x3F  # place and width of the sub-code in the first word
_LINE: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]{1,40})\s{1,4}(?P<severity>Fatal|Non-?fatal)\s{1,4}XC[0-9]{1,2}\s{1,4}i[0-9]{1,4}\s{1,4}Link (?P<link>-?[0-9]{1,4})"
    r"(?:\s{1,4}\((?:0x)?(?P<bits>[0-9a-fA-F]{8})\b(?:,?\s{1,4}(?:0x)?(?P<status>[0-9a-fA-F]{8})\b)?)?"
)
_ACTIONS: Final = {"none": "none", "reset": "reset"}  # what the columns call it; `read_154` leaves it to the verdict that follows


@dataclass(frozen=True, slots=True)
class NvlinkLine:
    """What the line itself says. `bits`, `status`: its first two words; None where the line is cut."""

    unit: str
    severity: str  # fatal or nonfatal
    link: int
    bits: int | None
    status: int | None

    @property
    def sub_code(self) -> int | None:
        """The number that tools print behind the Xid's (149.37): why a link went down; 0 for most units."""
        return None if self.bits is None else self.bits >> _SUB_CODE[0] & _SUB_CODE[1]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the sheet says: what is needed here (None: not told), and what the GPU at the link's other end will show."""

    recovery: str | None
    remote_effect: str


def nvlink_line(text: str) -> NvlinkLine | None:
    """The parts of the line that stands somewhere in a text; None where there is none."""
    if not (found := _LINE.search(text)):
        return None
    bits, status = (int(word, 16) if word else None for word in (found["bits"], found["status"]))
    return NvlinkLine(found["unit"], found["severity"].lower().replace("-", ""), int(found["link"]), bits, status)


def decoded(code: int, line: NvlinkLine, driver_version: str) -> Decoded | None:
    """What the sheet says of a line of Xid `code`, printed by that driver; None where it does not know it or means another severity."""
    is_new = int(driver_version.split(".")[0]) >= NEW_BITS
    for rule in _sheet().get((code, line.status), ()):
        mask, value = rule.since if is_new else rule.before
        if line.bits is not None and line.bits & mask == value and not rule.units.isdisjoint(line.unit.split("/")):
            return rule.decoded if rule.severity == line.severity else None
    return None


@dataclass(frozen=True, slots=True)
class _Rule:
    units: frozenset[str]
    before: tuple[int, int]  # bits that count, and what they are; with drivers before NEW_BITS
    since: tuple[int, int]
    severity: str
    decoded: Decoded


@cached
def _sheet() -> dict[tuple[int, int | None], list[_Rule]]:
    """Xid and second word -> rules, in the sheet's order."""
    found: dict[tuple[int, int | None], list[_Rule]] = {}
    for row in rows("nvlink5"):
        rule = _Rule(
            frozenset(row["units"].split("|")),
            _bits(row["word_before_575"]),
            _bits(row["word_since_575"]),
            row["severity"],
            Decoded(_ACTIONS.get(row["action"]), row["peer"]),
        )
        found.setdefault((int(row["xid"]), int(row["error_status"], 16)), []).append(rule)
    return found


def _bits(pattern: str) -> tuple[int, int]:
    """Mask and value of 32 bits, `-` = does not count."""
    return int(re.sub("[01]", "1", pattern).replace("-", "0"), 2), int(pattern.replace("-", "0"), 2)
