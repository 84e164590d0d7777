"""Finds the host that computes wrong bits: groups of hosts replay the same few steps twice, grouped across and along the pipelines.

1. `plan` says which hosts replay together in each phase, how many suspects may be left, and how likely a fault shows.
2. `run` starts the groups and records what each host computed, bit by bit.
3. `judge` compares groups that computed the same, and takes the hosts that the differing groups of both phases share.
"""

from __future__ import annotations

from rca.probes._replay_plan import plan_document as plan
from rca.probes._replay_run import run_plan as run
from rca.replay import judge_replays as judge

__all__ = ["judge", "plan", "run"]
