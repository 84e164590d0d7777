"""Every table, declared once: grain, columns, units. The polars schema, the DuckDB DDL and docs/tables.md all derive from here.

Instants end in `_at` (UTC), durations in `_s` (seconds), sizes in `_bytes`. Missing is null, never 0 or "". Evidence-derived rows carry
`evidence_id` and `record` (`L<line>`, `E<entry>`, `M<member>/...`), so every row leads back to the very place it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rca.tables import _answers, _checkpoints, _fleet, _hosts, _job, _nccl, _recorder, _records, _stacks, _training
from rca.tables._declare import DUMP_STATUS, GROUP_KINDS, Column, Table

__all__ = ["DUMP_STATUS", "GROUP_KINDS", "TABLES", "Column", "Table"]

_ROOMS: Final = (_job, _recorder, _stacks, _training, _hosts, _fleet, _nccl, _checkpoints, _records, _answers)
TABLES: Final[Mapping[str, Table]] = {table.name: table for room in _ROOMS for table in room.DECLARED}
