"""Exceptions that training programs raise of themselves, with the frames that lead there."""

from __future__ import annotations

from typing import Final

__all__ = ["OWN_ERRORS"]

Frames = tuple[tuple[str, str, int], ...]
OWN_ERRORS: Final[tuple[tuple[str, Frames], ...]] = (  # of a training program, with the frames that lead there
    ("KeyError: 'attention_mask'", (("{program}", "train_step", 191), ("{program}", "unpack", 77))),
    ("AssertionError: expected 4096 tokens, got 4093", (("{program}", "train_step", 191), ("{program}", "forward_step", 143))),
    (
        "RuntimeError: The size of tensor a (2048) must match the size of tensor b (2047) at non-singleton dimension 1",
        (("{program}", "train_step", 191), ("models/gpt.py", "forward", 402)),
    ),
    ("ZeroDivisionError: float division by zero", (("{program}", "train_step", 191), ("utils/schedule.py", "rate", 31))),
    ("AttributeError: 'NoneType' object has no attribute 'shape'", (("{program}", "train_step", 191), ("models/moe.py", "route", 88))),
    (
        "IndexError: index 64 is out of bounds for dimension 0 with size 64",
        (("{program}", "train_step", 191), ("models/moe.py", "dispatch", 120)),
    ),
    (
        "TypeError: unsupported operand type(s) for /: 'str' and 'int'",
        (("{program}", "train_step", 191), ("utils/metrics.py", "update", 54)),
    ),
)
