"""What only a rank's own program brings about, whatever devices of other hosts do."""

from __future__ import annotations

import pytest
from test_event_questions import Job

from rca.analyses._faults import story
from rca.analyses._own_faults import is_programs_own


@pytest.mark.parametrize(
    ("exception", "text", "is_own"),
    [
        ("KeyError", "'attention_mask'", True),
        ("RuntimeError", "The size of tensor a (2048) must match the size of tensor b (2047) at non-singleton dimension 1", True),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", True),
        ("RuntimeError", "Expected all tensors to be on the same device, but found at least two", True),
        ("RuntimeError", "device-side check failed: index out of bounds", False),
        ("RuntimeError", "the peer closed", False),
        ("AssertionError", "expected 4096 tokens, got 4093", True),
        ("AssertionError", "loss is not finite", False),
        ("AssertionError", "", False),
        ("trainer.Abort", "expected 4096 tokens, got 4093", False),
    ],
)
def test_what_needs_no_device_of_another_host(exception: str, text: str, *, is_own: bool) -> None:
    case = Job().log(3, "python_traceback", 20, text, exception=exception, frames=["forward (model.py:10)"]).case()
    (fault,) = case.derive(story).first
    assert (fault.ranks, is_programs_own(fault)) == ((3,), is_own)
