"""PyTorch flight-recorder dumps: pickle or JSON, recorder 1.x to 2.10, NCCL, gloo and torchcomms, whole or torn.

Every key is optional, unknown keys are passed over. A pickle is read by an unpickler that refuses every import, so nothing in a dump runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from collectors._dump_reader import Batch
    from rca.tables import Table
    from rca.types import Skip, Source

EMITS = ("dumps", "groups", "memberships", "group_status", "collectives", "stack_frames")
READS_PICKLES = True

_KEYS = (
    b"pg_config",
    b"pg_status",
    b"comm_lib_version",
    b"nccl_version",
    b"nccl_comm_state",
    b"profiling_name",
    b"collective_seq_id",
)
_JSON_START = re.compile(rb"\s*[\[{]\s*[\[{\"]")


def claims(name: str, head: bytes) -> bool:
    """A pickle (protocol 2 or later) or JSON text whose first bytes hold a key that only recorder dumps have."""
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if not is_pickle and not _JSON_START.match(head):
        return False
    if not is_pickle and b'"communicators"' in head and b'"entries"' not in head:
        return False  # a status report of NCCL RAS, which names the version by the same key
    if any(key in head for key in _KEYS):
        return True
    return is_pickle and b"entries" in head and b"version" in head


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """All rows of one dump; a torn file gives its good prefix and a Skip that says where it ends."""
    from collectors import _dump_reader  # with numpy, which who only asks whether it claims a file does not need

    return _dump_reader.read(source)


def batch() -> Batch:
    """Takes in dumps whose rows are made together."""
    from collectors import _dump_reader

    return _dump_reader.Batch()


def is_compiled() -> bool:
    """Whether there is a compiled reader here: Numba is installed."""
    from collectors._dump_compiled import is_there

    return is_there()


__all__: Sequence[str] = ["EMITS", "batch", "claims", "is_compiled", "read"]
