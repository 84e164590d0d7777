"""Whom do the hosts accuse that report network errors?

1. Take every line in which a transport names the far end of a failed connection (`_network_reports`). Flushed requests only follow from an
   earlier error; a failed registration is the reporter's own side; neither is a vote.
2. Leave out what something else explains: a fault of a rank's own that is not clearly later than the report (a process that ends closes its
   connections), a stop of the job, an error after which the rank made further steps, a far end or a reporter that itself had given up before, a
   host whose kernel had killed a trainer for memory.
3. Where the kernels of some hosts say that their links went down then, and every report is of a connection from one of these to another host, it is
   these hosts: they are cut off. Else count for every far end the distinct hosts that report it. Who alone is accused by a clear majority of the
   reporting hosts (and by at least two) is named; the speaker never is. Failing that, count again without far ends that report others themselves:
   they may only pass on.
4. One connection has two ends, and either may be it; equal votes are a tie; where all accuse all, it is a switch or the fabric, no host. A
   few closed connections are a mere symptom. An accused host that said nothing at all, while all others complained, is more likely gone itself.
5. A port that reports its own error is the exception: it accuses the host that prints it. Not so one that was up again soon: a flap ended nothing
   where nobody complains. Where the job failed of it, or the votes accuse its host, the network failed for a moment.
6. Transports write into the output of the ranks. Where only launchers or schedulers were read, or what ranks said at their start, nobody looked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rca.analyses._alive import went_on
from rca.analyses._faults import TIMED_OUT, Story, complains, story
from rca.analyses._job_logs import READS, Line, cite_line
from rca.analyses._memory_kills import unplaced_kills
from rca.analyses._network_reports import NAMELESS, Report, kind_of_report, reports, speaker
from rca.analyses._network_reports import READS as READS_TOO
from rca.analyses._port_flaps import back_of, downed, flapped, is_port_error
from rca.analyses._words import iso, quoted, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("log_events",)
USES = (*(table for table in READS if table not in NEEDS), *READS_TOO)
SIGNS = {
    "accused": Sign("network", ("network_fault", "network_transient", "host_lost", "process_killed", "unknown")),
    "accused_silent": Sign("network", ("host_lost", "host_fault", "network_fault", "unknown")),
    "accused_flap": Sign("network", ("network_transient", "network_fault", "unknown")),
    "flapped": Sign("network", ("network_transient", "unknown")),
    "gone": Sign("network", ("host_lost", "process_killed", "network_fault", "user_exception", "unknown")),
    "link": Sign("network", ("network_fault", "network_transient", "unknown")),
    "link_unheard": Sign("network", ("host_lost", "process_killed", "network_fault", "network_transient", "unknown")),
    "tie": Sign("network", ("network_fault", "network_transient", "unknown")),
    "everywhere": Sign("network", ("network_fault", "network_transient", "unknown")),
    "port_error": Sign("network", ("network_transient", "network_fault", "unknown")),
    "closed": Sign("mention", ()),
    "own_side": Sign("mention", ()),
    "flap_over": Sign("mention", (), is_note=True),
}

ENOUGH: Final = 2  # hosts that must accuse one: a single one cannot tell the far end from its own
CLEAR: Final = 2  # times as many as accuse any other, its own reports left aside
MANY: Final = 3  # hosts on both sides from which on it is no pair any more
SHARE: Final = 0.5  # of the reporting hosts that must be exceeded
MAX_CITES: Final = 6
MAX_NAMED: Final = 6
NOT_AT_WORK: Final = (  # begins the signatures of launchers, schedulers and kernels, and of what a rank prints at its start
    "elastic_", "process_signal", "rendezvous_", "slurm_", "k8s_", "host_", "worker_started", "log_breaks_off",
)  # fmt: skip
NO_FAULT: Final = frozenset({"cut_off"})  # a traceback without its last line may itself be the network's


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the host that is accused, or for what the votes leave open; one more for ports that failed, or for errors of the own side."""
    told = case.derive(story)
    if not told.logs.lines:
        raise NotEnoughEvidence("the logs here are of another job or launch")
    if told.logs.everyone and not told.not_seen_to_end_well:
        return ()  # connections end when jobs do
    lines = [line for line in told.logs.lines if _may_count(line)]
    live = [line for line in lines if not _is_explained(line, told) and not went_on(case, told.logs, line)]
    over = flapped(case, lines, told)
    found = [*_ports(live, told), *_own_side(live, told)]
    given = _without_killed(case, told, _without_victims(reports(case, told.logs, live), told))
    if not (given or found or any(map(_is_of_a_rank_at_work, told.logs.lines))):
        raise NotEnoughEvidence("no output of a rank was read beyond its start: there its transport writes")
    return [*found, _cut_off(case, given, told) or _lasting(case, _verdict(given, told, over), told)] if given else found


def _is_of_a_rank_at_work(line: Line) -> bool:
    """Whether a line stands in what ranks print while they work, as that of a transport would."""
    return not line.signature.startswith(NOT_AT_WORK)


def _may_count(line: Line) -> bool:
    return line.signature == "nccl_net_async_event" or kind_of_report(line) is not None


def _is_explained(line: Line, told: Story) -> bool:
    """Whether a stop, or a fault of a rank's own that is not clearly later, explains that connections failed."""
    causes = [fault.line for fault in told.first if fault.kind not in NO_FAULT]
    if told.stop.is_asked and told.stop.began is not None:
        causes.append(told.stop.began)
    return any(told.logs.order(line, cause) != -1 for cause in causes)


def _without_victims(given: Sequence[Report], told: Story) -> list[Report]:
    """Reports whose two ends had not given up before: who waited in vain takes its own connections down then, and so do its peers."""
    gave_up: dict[str, list[Line]] = defaultdict(list)
    for line in told.logs.lines:
        if complains(line):
            gave_up[speaker(line, told.logs)].append(line)
    left = []
    for report in given:
        if any(_gave_up(line, report.line, told) for line in gave_up.get(report.reporter, ())):
            continue
        own = gave_up.get(report.accused, ())
        if report.kind == "closed":
            is_victim = any(told.logs.order(line, report.line) != 1 for line in own)
        else:  # a queue fails at both ends at once: only a time-out that is clearly earlier makes the far end a victim
            is_victim = any(line.signature in TIMED_OUT and told.logs.order(line, report.line) == -1 for line in own)
        if not is_victim:
            left.append(report)
    return left


def _gave_up(waited: Line, reported: Line, told: Story) -> bool:
    """Whether the reporting rank's own time-out, by the same clock, came before its report: a network that fails is noticed long before one."""
    is_own = waited.signature in TIMED_OUT and (waited.rank is None or reported.rank is None or waited.rank == reported.rank)
    return is_own and told.logs.order(waited, reported) == -1


def _without_killed(case: Tables, told: Story, given: Sequence[Report]) -> list[Report]:
    """Reports but those of a host on which the kernel had killed what may be a trainer: the connections ended with it, whichever rank it was."""
    kills: dict[str | None, list[Line]] = defaultdict(list)
    for line in unplaced_kills(case, told.logs)[0] if given else ():
        kills[line.host].append(line)
    return [r for r in given if all(told.logs.order(r.line, line) == -1 for line in kills.get(r.accused, ()))]


def _votes(given: Sequence[Report]) -> dict[str, set[str]]:
    """Far end -> the hosts that report it."""
    found: dict[str, set[str]] = defaultdict(set)
    for report in given:
        found[report.accused].add(report.reporter)
    return found


def _chosen(given: Sequence[Report]) -> str | None:
    """The far end that a clear majority of the other reporting hosts accuse, and twice as many as any other."""
    votes = _votes(given)
    reporters = {report.reporter for report in given}
    for end, voters in sorted(votes.items(), key=lambda item: (-len(item[1]), item[0])):
        rivals = max((len(others - {end}) for other, others in votes.items() if other != end), default=0)
        return end if len(voters) >= ENOUGH and len(voters) > SHARE * len(reporters - {end}) and len(voters) >= CLEAR * rivals else None
    return None


def _firsthand(given: Sequence[Report], told: Story) -> list[Report]:
    """Reports whose far end reports nobody itself, or clearly later: the others may only pass on what they suffered."""
    earliest: dict[str, list[Line]] = defaultdict(list)
    for report in given:
        earliest[report.reporter].append(report.line)
    return [r for r in given if not any(told.logs.order(line, r.line) != 1 for line in earliest.get(r.accused, ()))]


def _cut_off(case: Tables, given: Sequence[Report], told: Story) -> Finding | None:
    """The hosts whose links are down by their kernels, where every report crosses from them to others; None where none is, or it would not show."""
    across = [report for report in given if report.kind == "transport" and report.is_host]
    first = min((report.line.at for report in across if report.line.at is not None), default=None)
    down = downed(case, told, first) & {host for report in across for host in (report.reporter, report.accused)}
    ranks = tuple(sorted({rank for host in down for rank in told.logs.ranks_on(host)}))
    if not ranks or set(ranks) >= told.logs.everyone or not all((r.reporter in down) != (r.accused in down) for r in across):
        return None
    pairs = len({(r.reporter, r.accused) for r in across})
    says = (
        f"the links of {_named(down)} went down by their kernels, and each of {pairs} failed connections leads from there to another host"
    )
    return Finding(
        "network_votes", "accused", f"{says} ({ranks_text(ranks)})", ranks=ranks, hosts=tuple(sorted(down)), scope=f"cut off {sorted(down)}",
        explains=tuple(sorted(told.logs.everyone - set(ranks))), numbers=_numbers(across, told), cites=_cites(across),
    )  # fmt: skip


def _verdict(given: Sequence[Report], told: Story, over: Collection[str]) -> Finding:
    """What the votes say: one host, both ends of one connection, a tie, or everybody."""
    if (end := _chosen(given)) is not None:
        return _accusation(end, given, told, is_over=end in over)
    firsthand = _firsthand(given, told)
    if (end := _chosen(firsthand)) is not None:
        return _accusation(end, firsthand, told, is_over=end in over)
    given = firsthand or given
    if not any(report.kind == "transport" for report in given):
        says = f"{_named({r.reporter for r in given})} lost connections to {_named(_votes(given))}: a symptom, and too few say so to point anywhere"
        return _open("closed", given, told, says)
    pairs = {tuple(sorted((report.reporter, report.accused))) for report in given}
    reporters, ends = {report.reporter for report in given}, set(_votes(given))
    if len(pairs) == 1:
        what = f"{given[0].reporter} and {given[0].accused} report" if len(reporters) > 1 else f"{_named(reporters)} alone reports"
        says = f"{what} a failed connection {'to each other' if len(reporters) > 1 else f'to {given[0].accused}'}"
        if len(reporters) == 1 and _is_unheard(given[0].accused, told):
            return _open(
                "link_unheard", given, told, f"{says}, whose logs were not read: a host or process that ended is lost in the same words"
            )
        return _open("link", given, told, f"{says}: either end fits, and so does what lies between them")
    if len(reporters) >= MANY and len(ends) >= MANY:
        says = (
            f"{len(reporters)} hosts report failed connections to {len(ends)} others and no one stands out: a switch or the fabric, no host"
        )
        return _open("everywhere", given, told, says)
    if len(reporters) == 1:
        says = f"{_named(reporters)} alone reports failed connections, to {_named(ends)}: its own adapter fits as well as theirs"
        return _open("tie", given, told, says)
    return _open("tie", given, told, f"{_named(reporters)} report failed connections to {_named(ends)}, and the votes do not decide")


def _accusation(end: str, given: Sequence[Report], told: Story, *, is_over: bool) -> Finding:
    logs = told.logs
    against = [report for report in given if report.accused == end]
    voters = {report.reporter for report in against}
    reporters = {report.reporter for report in given} - {end}
    is_closed = 2 * len({r.reporter for r in against if r.kind == "closed"}) > len(voters)
    on_host = logs.ranks_on(end) if against[0].is_host else ()
    ranks = () if is_closed and len(on_host) > 1 else on_host
    what = "that it closed or refused connections" if is_closed else "that transfers with it failed"
    of = f"{len(voters)} of {len(reporters)} hosts that report network errors say of {end} {what}"
    where = f" ({ranks_text(on_host)})" if on_host else "" if against[0].is_host else "; which host has that address no evidence says"
    is_silent = bool(ranks) and not is_closed and _fell_silent(end, told)
    says = of + where + ("; none of its ranks complained of anything itself, as those of all other hosts did" if is_silent else "")
    says += ("; nothing of its own explains it" if is_closed else "") + ("; its link was up again soon" if is_over else "")
    numbers = _numbers(against, told) | {"num_accusing": len(voters), "num_reporting": len(reporters), "accused": end}
    numbers["candidates"] = [] if ranks else list(on_host)
    return Finding(
        "network_votes", _sign_of(is_closed=is_closed, is_over=is_over, is_silent=is_silent), says, ranks=ranks, hosts=(end,), scope=f"accused {end}",
        explains=tuple(sorted(logs.everyone - set(ranks))) if ranks else (), numbers=numbers, cites=_cites(against),
    )  # fmt: skip


def _lasting(case: Tables, finding: Finding, told: Story) -> Finding:
    """The same, which says so where nothing tells of the own links of the host accused: the others give up whether these come back or not."""
    if finding.sign != "accused" or set(finding.hosts) & downed(case, told, None):
        return finding
    return replace(
        finding, says=f"{finding.says}; whether its link came back nothing tells", numbers={**finding.numbers, "may_be_back": True}
    )


def _sign_of(*, is_closed: bool, is_over: bool, is_silent: bool) -> str:
    return "gone" if is_closed else "accused_flap" if is_over else "accused_silent" if is_silent else "accused"


def _fell_silent(host: str, told: Story) -> bool:
    """Whether no rank of a host complained, and of every other host one did: who only loses the network notices it too."""
    complained = {told.logs.hosts.get(line.rank) for line in told.logs.lines if line.rank is not None and _notices(line)}
    return host not in complained and set(told.logs.hosts.values()) - {host} <= complained


def _is_unheard(host: str, told: Story) -> bool:
    """Whether of most ranks of a host no log was read."""
    on_host = set(told.logs.ranks_on(host))
    return 2 * len(on_host & (told.logs.read_to_the_end | {line.rank for line in told.logs.lines})) < max(len(on_host), 1)


def _notices(line: Line) -> bool:
    return complains(line) or _may_count(line)


def _open(sign: str, given: Sequence[Report], told: Story, says: str) -> Finding:
    """Nobody is accused; where all lines name one far end, that is shown as the host concerned."""
    votes = _votes(given)
    ends = sorted({report.reporter for report in given} | set(votes))
    fitting = sorted({rank for host in ends for rank in told.logs.ranks_on(host)}) if sign != "everywhere" else []
    numbers = _numbers(given, told) | {
        "votes": {end: len(voters) for end, voters in sorted(votes.items())},
        "ends": ends,
        "candidates": fitting,
    }
    hosts = tuple(votes) if len(votes) == 1 else ()
    return Finding("network_votes", sign, says, hosts=hosts, scope=f"{sign} {ends}", numbers=numbers, cites=_cites(given))


def _numbers(given: Sequence[Report], told: Story) -> dict[str, object]:
    return {"failed_at": iso(min((r.line.at for r in given if r.line.at is not None), default=None))}


def _ports(lines: Sequence[Line], told: Story) -> list[Finding]:
    """A port that failed accuses the host that prints it; ports of several hosts accuse what they hang on."""
    by_host: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if is_port_error(line):
            by_host[speaker(line, told.logs)].append(line)
    over = {host: own for host, own in by_host.items() if all(back_of(line, told) for line in own)}
    by_host = {host: own for host, own in by_host.items() if host not in over}
    if not by_host:
        return [_over(over, told)] if over else []
    every = [line for _, own in sorted(by_host.items()) for line in own]
    cites = tuple(cite_line(line) for line in every)[:MAX_CITES]
    numbers: dict[str, object] = {"failed_at": iso(min((line.at for line in every if line.at is not None), default=None))}
    if len(by_host) > 1:
        says = (
            f"{len(by_host)} hosts report errors of their own network ports ({_named(by_host)}): what they share is a switch or the fabric"
        )
        return [Finding("network_votes", "everywhere", says, scope=f"ports {sorted(by_host)}", numbers=numbers, cites=cites)]
    (host,) = by_host
    ranks = told.logs.ranks_on(host)
    says = f"{_named(by_host)} reports an error of its own network port: {quoted(every[0].text)}"
    return [
        Finding(
            "network_votes", "port_error", says, ranks=ranks, hosts=() if host.startswith(NAMELESS) else (host,), scope=f"port {host}",
            explains=tuple(sorted(told.logs.everyone - set(ranks))) if ranks else (), numbers=numbers, cites=cites,
        )
    ]  # fmt: skip


def _over(by_host: Mapping[str, Sequence[Line]], told: Story) -> Finding:
    """Ports that were up again: what the job failed of, if it did and only one of them can be meant; else told beside."""
    every = [line for _, own in sorted(by_host.items()) for line in own]
    cites = tuple(cite_line(told_by) for line in every for told_by in (line, back_of(line, told)) if told_by is not None)[:MAX_CITES]
    says = f"{_named(by_host)} reports an error of its own network port, which was up again: {quoted(every[0].text)}"
    # What complained before a port went down, as a client that waits for its store, complains of something else; and so does who was refused:
    # a host whose link is down refuses nobody, it does not answer.
    heard = [line for line in told.logs.lines if complains(line) and line.signature != "nccl_connect_refused"]
    has_failed = any(told.logs.order(line, port) != -1 for line in heard for port in every)
    (host, *others) = sorted(by_host)
    ranks = told.logs.ranks_on(host) if has_failed and not others else ()
    if not has_failed or not ranks:
        return Finding("network_votes", "flap_over", f"{says}; nobody complains of it", scope=f"flap {sorted(by_host)}", cites=cites)
    numbers: dict[str, object] = {"failed_at": iso(min((line.at for line in every if line.at is not None), default=None))}
    return Finding(
        "network_votes", "flapped", says, ranks=ranks, hosts=(host,), scope=f"flap {host}",
        explains=tuple(sorted(told.logs.everyone - set(ranks))), numbers=numbers, cites=cites,
    )  # fmt: skip


def _own_side(lines: Sequence[Line], told: Story) -> list[Finding]:
    """Errors of registration or access on the reporting side: no far end is to blame, which a person should know."""
    own = [line for line in lines if kind_of_report(line) == "local"]
    if not own:
        return []
    hosts = {speaker(line, told.logs) for line in own}
    says = f"{_named(hosts)}: the transport failed on the reporting side (memory, or a call into its adapter): no far end is accused"
    return [Finding("network_votes", "own_side", says, scope=f"own side {sorted(hosts)}", cites=tuple(map(cite_line, own))[:MAX_CITES])]


def _cites(given: Sequence[Report]) -> tuple[Cite, ...]:
    """The first line of every pair, so that as many hosts as possible are heard."""
    first: dict[tuple[str, str], Line] = {}
    for report in given:
        first.setdefault((report.reporter, report.accused), report.line)
    return tuple(cite_line(line) for _, line in sorted(first.items(), key=lambda item: item[0]))[:MAX_CITES]


def _named(hosts: Collection[str] | Mapping[str, object]) -> str:
    names = sorted({"a host that its log does not name" if host.startswith(NAMELESS) else host for host in hosts})
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
