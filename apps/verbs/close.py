"""Close an incident: diagnose once more, work out what it cost, and write its record and that of the job's launch into the fleet.

The evidence is read again, so what was added since (a replay, more logs) counts. Closing again makes the next revision; nothing that was said
before is lost. Records go to --fleet, else $RCA_FLEET, else the user's data folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from apps.incidents.life import Seen

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca close PATH [--fleet DIR] [--action A] [--evicted HOST ...] [--code-version V] [--recomputed-steps N] [...] [--json]`."""
    from apps.incidents.life import common
    from apps.incidents.moments import FORMS, takes_times_ago

    common(parser)
    takes_times_ago(parser)
    parser.add_argument("--fleet", metavar="DIR", help="folder of the fleet's records (default: $RCA_FLEET, else the user's data folder)")
    parser.add_argument("--action", metavar="ACTION", help="what was done first (default: what was advised)")
    parser.add_argument("--evicted", nargs="*", metavar="HOST", help="hosts that were taken out")
    parser.add_argument("--code-version", metavar="V", help="version of the training code")
    parser.add_argument("--checkpoint-step", type=int, metavar="N", help="step of the checkpoint that the job went on from")
    parser.add_argument("--recomputed-steps", type=int, metavar="N", help="steps done a second time (default: last step - checkpoint step)")
    parser.add_argument("--last-step", type=int, metavar="N", help="last step before the fault, where evidence does not tell")
    parser.add_argument("--tokens-per-step", type=int, metavar="N", help="tokens of one step of the whole job")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the job")
    parser.add_argument("--attempt", type=int, metavar="N", help="which launch of the job, where evidence does not tell")
    parser.add_argument("--started-at", metavar="T", help=f"when the launch began, where evidence does not tell: {FORMS}")
    parser.add_argument("--exit-code", type=int, metavar="N", help="exit code of the launcher")
    parser.add_argument(
        "--recurs", metavar="INC", help="the earlier incident that this one repeats, or `none` (default: looked up in the fleet)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.incident/1) on stdout")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 2 when nothing was opened or the fleet takes no records."""
    from pathlib import Path

    from apps.document import to_json
    from apps.incidents import fleetbook, life, moments
    from apps.incidents.notebook import notebook
    from apps.incidents.text import record_lines
    from apps.places import fleet_folder
    from apps.text import write
    from rca.errors import UsageError
    from rca.incidents.incident import fold, merged
    from rca.incidents.records import note

    book = notebook(Path(args.path))
    incident_id, notes = life.chosen(book, args.path, args.id)
    if args.recurs == incident_id:
        raise UsageError(f"--recurs {incident_id}: that is the incident itself; name an earlier one, or `none`")
    typed, facts = _typed(args), _facts(args)
    fleet = fleet_folder(args.fleet)
    fleetbook.prepare(fleet)
    _known(fleet, incident_id, notes)  # refused before the evidence is read
    seen = life.look(args.path, args.case, life.given_so_far(notes) | facts)
    _check_start(args, seen)
    life.tell_place(book, args.path)
    with fleetbook.locked(fleet):  # what others wrote while the evidence was read counts too, and no other closing comes between
        notes = notebook(Path(args.path)).notes.get(incident_id, notes)
        known, given = _known(fleet, incident_id, notes), life.given_so_far(notes) | facts
        seen, at = life.with_given(seen, given), moments.now()
        data = {**typed, "given": given, **_told(seen, notes, given, args.path)}
        draft = fold(merged(known, notes, [note(incident_id, at, "close", "", data, by=args.by)]))
        data["recurs_incident_id"] = _recurs(args.recurs, fleet, draft)
        launched = _launch(fleet, draft, seen, given, args)
        written = note(incident_id, at, "close", draft["summary"], data, by=args.by)
        record = fold(merged(known, life.written_down(book, args.path, written)[1]))
        file = fleetbook.write_incident(fleet, record)
        launch = None if launched is None else fleetbook.write_attempt(fleet, launched)
    _warn(record, launch)
    if args.json:
        write([to_json(record)])
        return 0
    times = "" if record["revision"] == 1 else f" (revision {record['revision']}; what was said before is kept)"
    write([f"{incident_id} is closed{times}: {record['summary']}", "", *record_lines(record)])
    if record["recurs_incident_id"]:
        write([f"Recurs: the same as {record['recurs_incident_id']}"])
    write(["", f"Record: {file}", *([f"Launch: {launch}"] if launch else [])])
    return 0


def _told(seen: Seen, notes: Sequence[Mapping[str, Any]], given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What the evidence tells now; nothing where it is gone, so that what the open note says counts."""
    from apps.incidents import life
    from apps.plain import complain
    from rca.incidents.records import instant

    if seen.is_blind:
        complain(f"nothing in {path} can be read any more: the diagnosis of the open note counts")
        return {}
    opened = next(one for one in notes if one["kind"] == "open")
    opened_at = instant(opened["at"])
    assert opened_at is not None
    asked_at = instant(opened["data"].get("asked_at")) or opened_at
    return life.opening(seen, asked_at, opened_at, instant(given.get("detected_at")))


def _typed(args: argparse.Namespace) -> dict[str, Any]:
    """What was typed of the close note's own fields, checked."""
    from apps.incidents import life
    from rca.causes import ACTIONS
    from rca.errors import UsageError

    if args.action is not None and args.action not in ACTIONS:
        raise UsageError(f"no action is called {args.action[:60]!r}: choose one of {', '.join(ACTIONS)}")
    for name in ("checkpoint_step", "recomputed_steps"):
        if (value := getattr(args, name)) is not None and not 0 <= value < 1 << 53:
            raise UsageError(f"--{name.replace('_', '-')} {value} is no number of steps")
    if args.recurs is not None and args.recurs != "none":
        life.check_name(args.recurs, "--recurs")
    found = {"action": args.action, "checkpoint_step": args.checkpoint_step, "recomputed_steps": args.recomputed_steps}
    found["code_version"] = life.text_of([args.code_version])[:200] if args.code_version is not None else None
    found["evicted"] = life.hosts_named(args.evicted) if args.evicted is not None else None
    return {name: value for name, value in found.items() if value is not None}


def _facts(args: argparse.Namespace) -> dict[str, Any]:
    from apps.incidents import moments
    from apps.incidents.life import given_facts
    from rca.incidents.records import iso

    return given_facts(
        num_gpus=args.gpus, tokens_per_step=args.tokens_per_step, last_step=args.last_step, exit_code=args.exit_code, attempt=args.attempt,
        started_at=iso(moments.moment(args.started_at, moments.now(), "--started-at")) if args.started_at else None,
    )  # fmt: skip


def _check_start(args: argparse.Namespace, seen: Seen) -> None:
    """A launch began before the fault that ended it, and before its last sign of life. Raises UsageError for a moment typed that lies after."""
    from rca.errors import UsageError
    from rca.incidents.records import instant, iso

    began, latest = instant(seen.facts["started_at"]), seen.verdict.failed_at or seen.course.last_at
    if args.started_at and began is not None and latest is not None and began > latest:
        raise UsageError(
            f"--started-at {iso(began)} lies after the fault, or the last sign of life ({iso(latest)}): check the time and its zone"
        )


def _known(fleet: Path, incident_id: str, notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history of the record that the fleet has of this incident. Raises UsageError where that is of another incident of the same name."""
    from apps.incidents import fleetbook, life
    from rca.errors import UsageError

    known = [one for file, record in fleetbook.stored(fleet, incident_id) for one in life.sound_history(record)]
    if known and not {(one["at"], one["kind"]) for one in known} & {(one["at"], one["kind"]) for one in notes}:
        raise UsageError(
            f"the fleet {fleet} has another incident {incident_id} (opened {known[0]['at']}): open this one under another name with --id"
        )
    return known


def _recurs(asked: str | None, fleet: Path, record: Mapping[str, Any]) -> str | None:
    """The earlier incident: as asked, else as the fleet tells."""
    from apps.incidents import fleetbook
    from apps.plain import complain
    from rca.incidents.incident import recurrence
    from rca.incidents.records import instant

    if asked == "none":
        return None
    if asked is not None:
        if not fleetbook.stored(fleet, asked):
            complain(f"--recurs {asked}: the fleet {fleet} has no record of it; if that is a slip, close again with the right name")
        return asked
    began = instant(record["began_at"] or record["opened_at"])
    assert began is not None
    return recurrence(record, fleetbook.earlier(fleet, began))


def _launch(
    fleet: Path, record: Mapping[str, Any], seen: Seen, given: Mapping[str, Any], args: argparse.Namespace
) -> Mapping[str, Any] | None:
    """The record of the launch that the incident ended, with what the fleet knows of it; None where nothing tells when it began. Raises UsageError
    where the fleet has another launch of that number, unless --attempt says that they are one."""
    from apps.incidents import fleetbook
    from apps.incidents.life import launch_of
    from rca.errors import UsageError
    from rca.incidents.records import joined

    launch = launch_of(record, seen, given)
    known = None if launch is None else fleetbook.stored_attempt(fleet, launch)
    if launch is None or known is None:
        return launch
    both = joined(known, launch, is_one=args.attempt is not None)
    if both is None:
        number, free = launch["attempt"], fleetbook.free_attempt(fleet, launch)
        raise UsageError(
            f"the fleet {fleet} has another launch of {launch['job_id']} with the number {number} ({known['started_at']} to {known['ended_at']}), "
            f"and this one began {launch['started_at']}: say which this was with --attempt {free}, or that they are one with --attempt {number}"
        )
    return {**both, "started_at": launch["started_at"]} if given.get("started_at") is not None else both  # a person's word goes first


def _warn(record: Mapping[str, Any], launch: Path | None) -> None:
    """What the record lacks, and how to add it."""
    from apps.plain import complain

    if record["cause"] == "unknown" and not record["is_overruled"]:
        complain("closed with an unknown cause: when somebody knows, `rca overrule PATH --cause ... --because ...` and close again")
    if record["lost_gpu_s"] is None and record["attribution"] != "none":
        lacks = (
            "GPUs (--gpus)"
            if record["num_gpus"] is None
            else "a moment of the fault (rca stage PATH detect --start T), or a stage that has ended"
        )
        complain(f"the lost GPU time is not known: the record lacks {lacks}")
    if launch is None:
        complain("no record of the launch: nothing in the evidence shows when it began, so rates leave it out; give --started-at T")
