"""Whether an exception says that a sample cannot be read, and which: by its type or text, raised in code that reads data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["IN_DATA", "is_unreadable", "sample_names"]

IN_DATA: Final = re.compile(  # in frames
    r"(?i)dataset|dataloader|data_loader|collate|decod|tokeniz|__getitem__|_utils/(?:fetch|worker)|sampler|transforms?\b"
)
NEAR: Final = 6  # innermost frames that are looked at
_UNREADABLE: Final = re.compile(  # types and texts of readers of images, sound, archives, text and tables whose bytes are not what they should be
    r"(?i)UnidentifiedImageError|cannot identify image|image file is truncated|broken data stream|truncated (?:file|image|jpeg|png|record)"
    r"|JSONDecodeError|UnicodeDecodeError|BadZipFile|BadGzipFile|not a gzipped file|zlib\.error|tarfile\.ReadError|unexpected end of data"
    r"|ArrowInvalid|ParserError|not a (?:jpeg|png|zip|tar|parquet|wav)|invalid (?:jpeg|png|magic|record|utf-?8|header)|DataLossError|LibsndfileError"
    r"|corrupt\w* (?:record|file|image|sample|shard|data)|error decoding|could not decode|failed to decode|decoding failed|crc (?:mismatch|error)"
)
_NAMED: Final = re.compile(
    r"(?i)(?<![\w])(?:record|row|document|doc|example|item|index|idx|key|uid|image file|video|audio|file|path)s?(?:[_ ]?(?:id|index|number|no))?"
    r"\s{0,2}[:=#]?\s{0,2}['\"<(\[]?(?P<id>[\w./:@-]{0,200}[0-9][\w./:@-]{0,200})"
)


def is_unreadable(exception: str | None, text: str | None, frames: Sequence[str]) -> bool:
    """Whether it tells of bytes that cannot be read, in code that reads data."""
    return bool(_UNREADABLE.search(f"{exception or ''} {text or ''}")) and any(IN_DATA.search(frame) for frame in frames[:NEAR])


def sample_names(exception: str | None, text: str | None, frames: Sequence[str]) -> tuple[str, ...]:
    """What such an exception names: a record, a file, a key; () where it tells no unreadable bytes or names nothing."""
    if not is_unreadable(exception, text, frames):
        return ()
    found = _NAMED.search(text or "")
    return (found["id"].rstrip(".:,"),) if found else ()
