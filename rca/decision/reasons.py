"""Why an action is the first one, in a sentence: what of the cause, the rule, the samples and the checkpoints carries it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rca.causes import CAUSES, is_full, is_late, is_stale
from rca.checkpoints import Rollback, first_divergence
from rca.commands import hostlist, node_name
from rca.decision.broken_hosts import broken_hosts, broken_words
from rca.decision.checkpoint_words import newest_whole, way_back
from rca.decision.endings import AFTER_STALL
from rca.decision.keep_out import SDC, fitting_hosts
from rca.policies import Rule
from rca.rank_rows import rows_text
from rca.roster import Roster
from rca.stop_words import stood_still, stop_words
from rca.types import Finding, Verdict
from rca.weighing import sign_of

__all__ = ["because", "instead"]

MAX_PARTS = 4  # components named in the sentence
CAPTURE = "run `rca capture --out DIR` on each host"
ROUNDS = "three rounds of stacks"  # as many as `rca capture` takes: two show who stands still, a third that it lasts
BY_WHOM = (
    "something told the launchers to stop, and nothing here says what: ask the scheduler's books (`sacct -j JOB -o JobID,State,ExitCode,End,Reason`, "
    "the events of its controller) and whoever may cancel; where it was on purpose, start it again"
)
_BECAUSE = {
    "retry": "nothing here says that a restart meets the same fault again; watch whether it comes back on the same host",
    "replace": "the fault sits on hardware, and a restart there would meet it again",
    "fix_code": "the fault is in the program: a restart meets it again, and no host is to blame",
    "human": "the evidence does not carry an action; the next thing to do is to look where it points",
    "rollback": "state after the fault cannot be trusted: go back to the newest checkpoint from before {step}",
    "quarantine_data": "the same sample would fail again",
    "none": "nothing to do",
}
_OF_CAUSE = {  # where more can be said than of the action
    "host_out_of_memory": "a restart may go through, but what used up the memory is still in the job: compare its use with the limit first",
    "process_killed": "by whom the process was killed is not told: look for the out-of-memory killer in that host's kernel log, then restart",
    "data_stall": "the loader got no data: see whether the storage behind it answers, then restart",
    "storage_stall": "storage did not answer: see whether it does now, or has room, then restart",
    "slow_rank": "every step waits for {who}: replace {hosts}, or go on slower until there {spares}",  # of a job that goes on
    "checkpoint_corrupt": "the checkpoint that was loaded cannot be read: go back to the newest whole one before it",
    "planned_stop": "stopped on purpose: start it again when the reason is over",
    "preemption": "the scheduler took the nodes: it goes on when it gets nodes again",
}


ENDED_SLOW = "every step waited for {who} while the job went: leave out {hosts} when it is started again"
_INSTEAD = {  # why the action is not that of the cause, where retries, alerts, spares, losses or doubt moved it
    "capped": "{retries}; what the restart leaves as it is has to change first",
    "flaps": "{alerts} network alerts of {host} within five minutes: no flap any more ({places})",
    "shrink": "{gone} host{s} go{es} and {spares}: go on smaller until there are more",
    "degrade": "{loss}",
    "either": "a broken GPU and a wrong kernel of the program fail in the same words, and nothing was seen of the hardware itself: restart once; "
    "where it comes back elsewhere, it is the program (compute-sanitizer names the kernel); evict {hosts} only where it comes back there, or its "
    "kernel log shows an Xid of that GPU",
}


def instead(why: str, **words: object) -> str:
    """The sentence of an action that was moved: `capped`, `flaps`, `shrink`, `degrade`, `either`."""
    return _INSTEAD[why].format(**words)


def because(
    verdict: Verdict, roster: Roster, action: str, findings: Sequence[Finding], back: Rollback | None, rule: Rule | None = None, *,
    goes_on: bool = True,
) -> str:  # fmt: skip
    """The sentence; `rule` where a rule chose another action than the cause's own. `goes_on`: False = the job ended or stands."""
    if rule is not None:
        return (f"{rule.says}: {rule.why}" if rule.why else rule.says) + _map_wanted(findings)
    is_slow = verdict.cause == "slow_rank" and action == "replace" and bool(verdict.hosts)
    return (
        (ENDED_SLOW.format(**_them(verdict)) if is_slow and not goes_on else _of_verdict(verdict, roster, action, findings))
        + (way_back(back) if action == "rollback" else newest_whole(findings))
        + _map_wanted(findings)
    )


def _of_verdict(verdict: Verdict, roster: Roster, action: str, findings: Sequence[Finding]) -> str:
    if action == "replace" and not verdict.hosts and roster.disputed & set(verdict.ranks):
        which = "these ranks" if len(verdict.ranks) > 1 else "this rank"
        return f"sources name different hosts for {which} (sources_disagree): find out which is right before draining any"
    if action == "replace" and verdict.ranks and not verdict.hosts:
        return "the rank is known but not its host: give a rank map (rank,host) and ask again"
    if verdict.cause == SDC and not verdict.ranks and not verdict.hosts:
        return _open_chip(verdict, roster, findings)
    if verdict.data and action == "quarantine_data":
        return f"the same sample would fail again: leave out {_samples(verdict.data)} and restart"
    if verdict.cause == "config_drift" and verdict.hosts:
        return _in_line(verdict, findings)
    if verdict.cause == "data_stall" and is_late(f.sign for f in findings):
        return "batches come late: see how fast the storage behind the loader answers and whether its workers get enough processors, then restart"
    if verdict.cause == "storage_stall" and is_full(f.says for f in findings):
        return "storage has no room left: free space or raise the quota first, and see that a checkpoint was not half written; then restart"
    if verdict.cause == "storage_stall" and is_stale(f.says for f in findings):
        return (
            "file handles are stale: they stay so though the server answers; mount the file system afresh on each host of the job (umount, mount) "
            "and read a file there, then restart"
        )
    if action == "replace" and verdict.cause in ("network_fault", "network_transient") and len(verdict.hosts) > 1:
        return (
            f"links of {len(verdict.hosts)} hosts failed at once: look first at what they share (leaf switch, its power and uplinks); where that is "
            "it, the hosts are sound and come back with it; a restart there before would meet it again"
        )
    if action == "replace" and verdict.cause == "network_fault" and any(f.numbers.get("may_be_back") for f in findings):
        return (
            "whether the link of this host came back nothing tells: ask its port first (ibstat: Active, LinkUp, and its kernel log); where it is up "
            "and stays so, restart with the host, else a restart there would meet it again"
        )
    if action == "human" and verdict.ranks and verdict.cause == "unknown":
        return "who failed first is clear, why is not: take stacks (with --native) and the log of this rank before restarting"
    if action == "human" and verdict.cause == "network_fault" and not verdict.ranks:
        return _shared_link(roster, findings)
    fitting = sorted({rank for f in findings for rank in f.numbers.get("candidates", ())})
    if action == "human" and (broken := sorted({host for f in findings if f.numbers.get("is_broken") for host in f.hosts})):
        return f"several hosts report faults of their own ({', '.join(broken)}), and which was first is open: test each before it is used again"
    if action == "human" and (wanted := [f for f in findings if f.numbers.get("samples_wanted")]):
        apart = rows_text(wanted[0].numbers["candidates"])
        return f"ranks {apart} stand apart, and one more round of stacks decides whether they hold the others up: {CAPTURE}, and ask again with that"
    if action == "human" and any(f.sign == "bare_stop" for f in findings):
        return BY_WHOM
    if action == "human" and not verdict.ranks and verdict.cause == "unknown" and stood_still(findings) is not None:
        return AFTER_STALL
    if action == "human" and not fitting and any(f.sign == "ended_well" for f in findings):
        return (
            "nothing has to be done to the job: where it was slow, or its result matters, compare its timings and the sums of its replicas"
        )
    if action == "human" and fitting:
        who, them = (
            (f"several ranks fit ({rows_text(fitting)})", "them")
            if len(fitting) > 1
            else (f"rank {fitting[0]} may fit", "it and its peers")
        )
        return f"{who}: take {ROUNDS} of {them}, and give a rank map with the process groups"
    if action == "human" and not findings:
        return f"nothing points anywhere yet: while the job stands {CAPTURE}, which takes recorder dumps, logs and {ROUNDS}, and ask again"
    if CAUSES[verdict.cause].attribution == "planned" and (ended := stop_words(findings, verdict.cause)) is not None:
        return _with_broken(ended.then, broken_hosts(findings, ()), roster)
    if verdict.cause == "user_exception" and action == "fix_code" and (where := _raised_at(findings)):
        return f"the program raised in {where}: mend that first, a restart meets it again; no host is to blame"
    step = first_divergence(verdict, findings)
    since = f"step {step}" if step is not None else "it"
    told = _OF_CAUSE.get(verdict.cause, _BECAUSE.get(action, "")).format(step=since, **_them(verdict))
    if verdict.cause == SDC and verdict.hosts:
        out = f"keep {', '.join(verdict.hosts)} out of use until a double run clears or proves it, and go back"
        return told.replace("go back", out, 1)
    return told


def _with_broken(then: str, broken: Mapping[str, str], roster: Roster) -> str:
    """What to do after an end on purpose, where kernels of its hosts tell of broken hardware: that stays to be mended, though it ended nothing."""
    if not broken:
        return then
    return (
        f"{then.replace(', nothing is to be mended', '')}; a fault that did not end it is to be mended too: {broken_words(broken, roster)}"
    )


def _in_line(verdict: Verdict, findings: Sequence[Finding]) -> str:
    """What to give the host that runs other versions than its peers."""
    parts = list(
        dict.fromkeys(str(part) for f in findings if f.analysis == "config_drift" and f.hosts for part in f.numbers.get("components", ()))
    )
    what = f"the {', '.join(parts[:MAX_PARTS])} of the others" if parts else "the versions of the others"
    why = "it runs other versions than its peers, and nothing else explains it"
    return f"give {', '.join(verdict.hosts)} {what}, or leave it out, then restart: {why}"


def _raised_at(findings: Sequence[Finding]) -> str:
    """The frame in which the first exception was raised, with its kind; "" where no log holds a traceback."""
    told = next((f.numbers for f in findings if f.sign == "raised" and f.numbers.get("raised_at")), None)
    if told is None:
        return ""
    kind = told.get("exception")
    return f"{told['raised_at']}, {kind}" if kind else str(told["raised_at"])


def _them(verdict: Verdict) -> dict[str, str]:
    """How a sentence names those accused: one, or several of which each alone holds up a step."""
    if len(verdict.hosts) > 1:
        return {
            "who": "the slowest of these ranks",
            "hosts": "all their hosts (while one stays, steps wait for it)",
            "spares": "are spares",
        }
    who = "this rank" if len(verdict.ranks) == 1 else "these ranks"
    return {"who": who, "hosts": "its host" if len(verdict.ranks) == 1 else "their host", "spares": "is a spare"}


def _shared_link(roster: Roster, findings: Sequence[Finding]) -> str:
    """Where to look when the network failed and no host stands out: on what the hosts share whose links are told of; stacks tell nothing of it."""
    network = [f for f in findings if sign_of(f).causes[:1] == ("network_fault",)]
    own = {host for f in network for host in f.hosts} or {str(host) for f in network for host in f.numbers.get("ends", ())}
    touched = {rank for f in network for rank in f.numbers.get("members", ())}  # of the calls that nobody ends: all others only wait behind
    nodes = [node_name(roster.spelled(host)) for host in own or roster.hosts_of(tuple(sorted(touched)))]
    some = f"the hosts of ranks {rows_text(sorted(touched))}" if touched and touched < set(roster.everyone) else "the hosts of the job"
    whom = hostlist(nodes) if nodes else some
    return (
        f"no host stands out: look at what {whom} share (switch, rail, fabric) and at the port and link of each (ibstat; on each host: Active, "
        "LinkUp, the full rate); leave out those whose link stays down, then restart"
    )


def _open_chip(verdict: Verdict, roster: Roster, findings: Sequence[Finding]) -> str:
    """Where wrong bits were seen and no chip is named: which hosts stay out of use (`keep_out`)."""
    hosts = fitting_hosts(roster, findings)
    step = first_divergence(verdict, findings)
    back = "" if step is None else f" (go back to before step {step})"
    which = f"one of {', '.join(hosts)} may hold it" if hosts else "all hosts may hold it"
    return (
        f"state after the fault cannot be trusted{back}; which chip is wrong is open, {which}: "
        "keep them out of use until a replay (rca replay plan) clears them"
    )


def _map_wanted(findings: Sequence[Finding]) -> str:
    """What to give where a kernel's record names a host, and nothing tells which ranks sit there."""
    wanted = [f.numbers for f in findings if f.numbers.get("needs_map")]
    if not wanted:
        return ""
    if all(numbers.get("has_log") for numbers in wanted):
        return "; give a map of ranks to hosts (rank,host,gpu): it tells which rank sits there"
    return "; give a map of ranks to hosts (rank,host,gpu) and the trainer's log: they tell which rank sits there, and when the job ran"


def _samples(data: Mapping[str, Any]) -> str:
    ids = [str(i) for i in data["sample_ids"]]
    where = f" of {data['shard']}" if data["shard"] else ""
    return f"sample{'s' if len(ids) > 1 else ''} {', '.join(ids[:8])}{where}" if ids else f"the batch{where}"
