"""Records of interruptions dealt with: incidents, their stages and notes, and replays."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import ATTEMPT, BOOL, FLOAT, FROM, INSTANT, INT, INTS, JOB, TEXT, TEXTS, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "incidents",
        "interruption dealt with, newest revision of its record",
        Column("incident_id", TEXT, "incident"),
        JOB,
        ATTEMPT,
        Column("revision", INT, "how often the record was closed, 1 = once"),
        Column("began_at", INSTANT, "when the fault first showed"),
        Column("opened_at", INSTANT, "when somebody began to deal with it"),
        Column("detected_at", INSTANT, "when it was noticed"),
        Column("closed_at", INSTANT, "when it was closed"),
        Column("attribution", TEXT, "platform, workload, planned, none, unknown: as stated"),
        Column("layer", TEXT, "layer of the stated cause"),
        Column("cause", TEXT, "cause as stated: the verdict, unless a person overruled it"),
        Column("proven_cause", TEXT, "cause that a replay or probe proved; null = none did"),
        Column("is_overruled", BOOL, "a person changed what the verdict said"),
        Column("because", TEXT, "reason of the attribution"),
        Column("action", TEXT, "what was done first"),
        Column("ranks", INTS, "ranks that failed first"),
        Column("hosts", TEXTS, "hosts that failed first"),
        Column("gpus", TEXTS, "GPUs that failed first"),
        Column("evicted", TEXTS, "hosts taken out"),
        Column("code_version", TEXT, "of the training code"),
        Column("world_size", INT, "ranks of the job"),
        Column("num_gpus", INT, "GPUs that stood idle"),
        Column("lost_gpu_s", FLOAT, "GPU seconds from the fault to the step that made up for it; recomputation not counted"),
        Column("recomputed_steps", INT, "steps done a second time"),
        Column("recomputed_s", FLOAT, "how long these took, s"),
        Column("recomputed_tokens", INT, "tokens seen a second time"),
        Column("recurs_incident_id", TEXT, "earlier incident that this one repeats"),
        Column("summary", TEXT, "one sentence"),
        lead=FROM,
    ),
    table(
        "stages",
        "incident x stage",
        Column("incident_id", TEXT, "incident"),
        Column("stage", TEXT, "detect, localize, queue, replace, load, rebuild, warmup, validate, resume"),
        Column("started_at", INSTANT, "when it began"),
        Column("ended_at", INSTANT, "when it ended; null = not told"),
        Column("budget_s", FLOAT, "allowed, s; null = no budget"),
        Column("origin", TEXT, "evidence or hand"),
        lead=FROM,
    ),
    table(
        "notes",
        "note on an incident: what a person (or the tool for one) wrote down",
        Column("incident_id", TEXT, "incident"),
        Column("noted_at", INSTANT, "when it was written"),
        Column("kind", TEXT, "open, note, stage, overrule, close"),
        Column("author", TEXT, "who wrote it; null = not told"),
        Column("text", TEXT, "in words"),
        Column("data", TEXT, "what it states beside the words, as JSON"),
        lead=FROM,
    ),
    table(
        "replays",
        "host and run of a replay group",
        Column("replay_id", TEXT, "replay"),
        Column("phase", TEXT, "horizontal, vertical or double_run"),
        Column("group_number", INT, "number of the group in its phase"),
        Column("repeat", INT, "how often the same was run before"),
        Column("host", TEXT, "host, lower-case first label"),
        Column("place", INT, "place in its group: what is computed there must be the same in every group"),
        Column("step", INT, "step that the fingerprint is of"),
        Column("fingerprint", TEXT, "of the bits that the host computed"),
        Column("expected", TEXT, "of the bits that it should have; null = no reference"),
        Column("outcome", TEXT, "equal, differs, missing"),
        Column("ran_at", INSTANT, "when it ended"),
        lead=FROM,
    ),
)
