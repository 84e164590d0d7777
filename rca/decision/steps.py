"""What comes next if the action fails: the branches that follow, each in a sentence, with what to run. Pure; commands are text for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rca.decision.history import History
from rca.decision.stop_time import stop_time_checks
from rca.decision.tree import FLAPS, ladder
from rca.replay import COMMANDS

__all__ = ["next_steps"]

_SAYS: Final[Mapping[str, tuple[str, str]]] = {  # branch -> when it comes, what is done
    "evict_after_repeats": (f"{FLAPS} network alerts of a host within five minutes", "evict that host"),
    "stop_time_checks": ("it fails again", "stop, and check the idle machines; evict a machine that fails a check"),
    "reattempt": ("all checks pass", "restart as it is, once: assume that it was transient"),
    "roll_back_code": ("it fails again the same way", "{code}; that the job then runs shows that the code was it"),
    "dual_phase_replay": ("it still fails", "replay a few steps in two phases, and evict the machine that both accuse"),
    "fix_code": ("the replay accuses no machine", "look at the code that handles the sample"),
}


_STILL_SLOW: Final = "steps stay as long"  # of uneven work, which fails nothing


def next_steps(
    branch: str, history: History, *, hosts: Sequence[str], layer: str, gpus_per_host: int | None, is_capped: bool, is_retried: bool = False
) -> tuple[dict[str, Any], ...]:
    """The steps after a branch, in order: `branch`, `when`, `says`, `run`. `hosts` = those to check, as their scheduler spells them. No reattempt
    where the fault came back too often already, or where the first action is that restart (`is_retried`)."""
    runs: Mapping[str, Callable[[], Sequence[str]]] = {
        "stop_time_checks": lambda: stop_time_checks(hosts, layer=layer, gpus_per_host=gpus_per_host),
        "dual_phase_replay": lambda: COMMANDS,
    }
    names = [name for name in ladder(branch) if name != "reattempt" or not (is_capped or is_retried)]
    code = _code(history)
    return tuple(
        {
            "branch": name,
            "when": _STILL_SLOW if branch == "even_out" else _SAYS[name][0],
            "says": _SAYS[name][1].format(code=code),
            "run": list(runs[name]()) if name in runs else [],
        }
        for name in names
    )


def _code(history: History) -> str:
    """To which version the code goes back, as far as records tell."""
    now = history.code_version
    others = [
        past.code_version for past in history.past if past.code_version and past.code_version != now and past.job_id == history.job_id
    ]
    pending = f", and leave out what waits: {'; '.join(history.pending_changes)}" if history.pending_changes else ""
    if others and now:
        return f"roll the code back from {now} to {others[-1]}, the version before in the records{pending}"
    told = f"which runs now is {now}; an earlier one" if now else "which versions ran"
    return f"roll the code back to the last version that ran ({told} is not in the records){pending}"
