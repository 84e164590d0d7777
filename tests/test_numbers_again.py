"""Curves that must raise no alarm and those that must; steps, samples and ranks that go wrong again: data told from chip."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from rca.analyses._failures import failures
from rca.analyses._sample_names import is_unreadable, sample_names
from rca.case import MemoryCase
from rca.checkpoints import first_divergence, rollback
from rca.diagnose import diagnose
from rca.questions import ask
from rca.roster import roster
from rca.tables import TABLES
from rca.types import Finding

N = 400


def decay(rng: np.random.Generator, *, noise: float = 0.02, first: float = 10.5, last: float = 2.2) -> Any:
    """A loss that falls from the logarithm of the vocabulary to its plateau."""
    return (last + (first - last) * np.exp(-np.arange(N) / 25)) * np.exp(noise * rng.standard_normal(N))


def norms(rng: np.random.Generator, *, noise: float = 0.2) -> Any:
    """Gradient norms: high in the first steps, then settled."""
    return (0.6 + 6 * np.exp(-np.arange(N) / 10)) * np.exp(noise * rng.standard_normal(N))


def printed(loss: Sequence[float | None], norm: Sequence[float | None] | None = None, **columns: Any) -> dict[str, Any]:
    loss, norm = (
        [float(v) if v is not None else None for v in values] for values in (loss, norm if norm is not None else [None] * len(loss))
    )
    wrote_norm = any(v is not None for v in norm)
    finite = [
        v is not None and math.isfinite(v) and (not wrote_norm or (w is not None and math.isfinite(w)))
        for v, w in zip(loss, norm, strict=True)
    ]
    sound = [[v if v is not None and math.isfinite(v) else None for v in values] for values in (loss, norm)]
    return {
        "evidence_id": "0" * 16, "record": [f"L{i + 1}" for i in range(len(loss))], "step": list(range(len(loss))), "loss": sound[0],
        "grad_norm": sound[1], "is_finite": finite,
    } | columns  # fmt: skip


def of_job(data: Mapping[str, Any]) -> MemoryCase:
    return MemoryCase({"progress": TABLES["progress"].frame(dict(data))})


def spikes(values: Any, at: int, length: int, times: float) -> Any:
    values[at : at + length] *= times
    return values


def wsd(rng: np.random.Generator) -> dict[str, Any]:
    """Warm-up, stable, decay: the learning rate falls at the end and the loss with it."""
    loss = decay(rng)
    loss[320:] -= np.linspace(0, 0.4, 80)
    rate = np.concatenate([np.linspace(0, 3e-4, 40), np.full(280, 3e-4), np.linspace(3e-4, 0, 80)])
    return printed(loss, norms(rng), learning_rate=rate.tolist())


def restarts(rng: np.random.Generator) -> dict[str, Any]:
    """Cosine with warm restarts: the learning rate jumps a hundredfold, and the loss a fifth with it for a while."""
    loss, norm = decay(rng), norms(rng)
    for at in (150, 300):
        loss[at:] += 0.5 * np.exp(-np.arange(N - at) / 20)
        norm[at:] += np.exp(-np.arange(N - at) / 20)
    rate = 1e-6 + 3e-4 * (1 + np.cos(np.pi * (np.arange(N) % 150) / 150)) / 2
    return printed(loss, norm, learning_rate=rate.tolist())


def rising_norm(rng: np.random.Generator) -> dict[str, Any]:
    """A norm that grows with the learning rate in warm-up and drifts up slowly later: tenfold over the run, never at once."""
    return printed(decay(rng), norms(rng) * np.linspace(1, 10, N))


def reward(rng: np.random.Generator) -> dict[str, Any]:
    """A policy loss: around zero, both signs, heavy tails."""
    return printed(0.01 * rng.standard_t(3, N), norms(rng, noise=0.5))


def zeros_first(rng: np.random.Generator) -> dict[str, Any]:
    """A loss that is 0 in its first steps, as of group-relative policies."""
    loss = np.abs(0.002 * rng.standard_normal(N))
    loss[:60] = 0.0
    return printed(loss)


def tiny(rng: np.random.Generator) -> dict[str, Any]:
    """Overfitted to almost nothing, with a rare hard batch."""
    return printed(np.maximum(decay(rng, first=5, last=0.001) * np.where(rng.random(N) < 0.03, 8, 1), 0))


def healing(rng: np.random.Generator) -> dict[str, Any]:
    """Loss spikes of some tens of steps that come back, as large pre-trainings have them."""
    loss, norm = decay(rng), norms(rng)
    for at, length in ((120, 25), (250, 60)):
        spikes(loss, at, length, 3.0)
        spikes(norm, at, 6, 30.0)
    return printed(loss, norm)


def scaling(rng: np.random.Generator) -> dict[str, Any]:
    """fp16: the first 18 steps overflow while the loss scale is searched for, later one now and then; the last row is one of them."""
    loss, norm = decay(rng), norms(rng)
    norm[[*range(18), 200, 301, N - 1]] = np.inf
    return printed(loss, norm)


def masked(rng: np.random.Generator) -> dict[str, Any]:
    """A batch of padding only: its mean loss is 0/0, its gradient is sound."""
    loss = decay(rng)
    loss[[90, 222]] = np.nan
    return printed(loss, norms(rng))


def resumed(rng: np.random.Generator) -> dict[str, Any]:
    """A run that stopped at 300, resumed from 40 into the same file: the loss jumps back to where it was at 40."""
    loss, norm = decay(rng, last=0.4, first=10), norms(rng)
    order = [*range(300), *range(40, N)]
    return printed(loss[order], norm[order]) | {"step": order}


def epochs(rng: np.random.Generator) -> dict[str, Any]:
    """Steps that count anew in each epoch."""
    return printed(decay(rng), norms(rng)) | {"step": [i % 100 for i in range(N)], "epoch": [float(i // 100) for i in range(N)]}


def newest_first(rng: np.random.Generator) -> dict[str, Any]:
    """An export that lists the newest step first."""
    data = printed(decay(rng), norms(rng))
    return data | {"record": data["record"][::-1]}


SOUND: tuple[Callable[[np.random.Generator], dict[str, Any]], ...] = (
    wsd, restarts, rising_norm, reward, zeros_first, tiny, healing, scaling, masked, resumed, epochs, newest_first,
)  # fmt: skip


@pytest.mark.parametrize("curve", SOUND, ids=lambda curve: curve.__name__)
def test_a_sound_curve_raises_no_alarm(curve: Callable[[np.random.Generator], dict[str, Any]]) -> None:
    for seed in range(3):
        data = curve(np.random.default_rng(seed))
        for last in (N, 320, 60):  # a record may end anywhere
            cut = {name: values[:last] if isinstance(values, list) else values for name, values in data.items()}
            if curve in (healing, scaling) and last != N:
                continue  # a spike that the record ends in has not healed yet
            outcome = ask(of_job(cut), "loss_divergence")
            assert outcome.status == "clear", (seed, last, outcome.why)


@pytest.mark.parametrize(("curve", "sign"), [(healing, "healed"), (scaling, "passed"), (masked, "passed")])
def test_what_passed_is_noted(curve: Callable[[np.random.Generator], dict[str, Any]], sign: str) -> None:
    (note,) = ask(of_job(curve(np.random.default_rng(1))), "loss_divergence").findings
    assert (note.sign, note.ranks) == (sign, ())
    assert note.cites


def broken(change: Callable[[Any, Any], None], curve: str = "plain") -> dict[str, Any]:
    rng = np.random.default_rng(5)
    loss, norm = decay(rng), norms(rng)
    change(loss, norm)
    return printed(loss, norm if curve == "plain" else None)


def fivefold(loss: Any, _: Any) -> None:
    loss[250:] *= 5.5


def diverged(loss: Any, norm: Any) -> None:  # as language models do: back to the logarithm of the vocabulary, with a wild norm
    loss[250:] = 7.5
    norm[250:] *= 12


def drifted_to_nan(loss: Any, norm: Any) -> None:
    loss[244:250] *= np.linspace(1.5, 3, 6)
    loss[250:] = np.nan
    norm[250:] = np.nan


def norm_gone(loss: Any, norm: Any) -> None:
    norm[300:] = np.nan  # 100 steps: no search for a scale takes that long


@pytest.mark.parametrize(
    ("change", "curve", "sign", "step", "first"),
    [
        (fivefold, "loss only", "loss_jumped", 250, 250),
        (diverged, "plain", "loss_jumped", 250, 250),
        (drifted_to_nan, "plain", "loss_not_finite", 250, 244),
        (drifted_to_nan, "loss only", "loss_not_finite", 250, 244),
        (norm_gone, "plain", "loss_not_finite", 300, 300),
    ],
)
def test_a_curve_that_breaks_is_told_with_the_step_at_which_it_began(
    change: Callable[[Any, Any], None], curve: str, sign: str, step: int, first: int
) -> None:
    finding = ask(of_job(broken(change, curve)), "loss_divergence").findings[0]
    assert (finding.sign, finding.ranks) == (sign, ())
    assert (finding.numbers["step"], finding.numbers["first_divergence_step"]) == (step, first)


def test_of_a_resumed_run_the_newest_pass_counts() -> None:
    """The first pass ends in NaN at 120; the second begins at 100 and goes past it, or has not got there yet."""
    loss = [2.0] * 120 + [math.nan] * 3
    for again, status in (([2.0] * 60, "clear"), ([2.0] * 10, "found")):
        data = printed([*loss, *again]) | {"step": [*range(123), *range(100, 100 + len(again))]}
        assert ask(of_job(data), "loss_divergence").status == status, len(again)


def test_a_raised_learning_rate_is_told_beside_a_jump() -> None:
    data = broken(diverged) | {"learning_rate": [1e-4] * 240 + [1e-3] * 160}
    assert "learning rate rose from 0.0001 to 0.001" in ask(of_job(data), "loss_divergence").findings[0].says


@pytest.mark.parametrize(
    ("skips", "is_nan", "sign", "total"),
    [
        ([0] * 40 + [1] + [0] * 20, True, "skipped", 1),
        ([1] * 20 + [0] * 30, False, "skipped", 20),  # the search for a scale
        ([1] * 20, False, "skipped", 20),  # the record ends in it
        ([0] * 30 + [1] * 3, True, "skipped", 3),
        ([0] * 20 + [1] * 20, False, "skipped", 20),
        ([0] * 20 + [10, 10], True, "always_skipped", 20),  # no scale makes a loss finite
        ([0] * 20 + [1] * 40, False, "always_skipped", 40),
        ([0] * 5 + [10] * 4, False, "always_skipped", 40),  # printed every ten steps
    ],
)
def test_skipped_updates_are_counted_and_only_those_that_last_are_a_fault(skips: list[int], sign: str, total: int, *, is_nan: bool) -> None:
    data = printed([2.0] * len(skips), [1.0] * len(skips))
    nan = total if is_nan else 0
    data |= {"num_skipped": skips, "num_nan": skips if is_nan else [0] * len(skips), "is_skipped": [n > 0 for n in skips]}
    outcome = ask(of_job(data), "loss_divergence")
    (finding,) = outcome.findings
    assert (finding.sign, finding.numbers["num_skipped"], finding.numbers["num_nan"]) == (sign, total, nan)
    assert outcome.status == ("found" if sign == "always_skipped" else "clear")


@pytest.mark.parametrize(("tail", "signs"), [([0.0] * 5, ["zero"]), ([0.0, 2.0, 2.0], []), ([0.0] * 5 + [1.9], [])])
def test_a_loss_of_exactly_zero_at_the_end_is_a_note(tail: list[float], signs: list[str]) -> None:
    outcome = ask(of_job(printed([2.0] * 30 + tail)), "loss_divergence")
    assert (outcome.status, [finding.sign for finding in outcome.findings]) == ("clear", signs)


@pytest.mark.parametrize("own", [True, False])
def test_a_rank_that_prints_its_own_loss_is_named_and_shared_averages_name_nobody(own: Any) -> None:
    frames = []
    for rank in range(4):
        loss = [2.0 + (0.05 * rank if own else 0.0)] * 20
        loss[12:] = [math.nan] * 8 if rank == 2 or not own else [*loss[12:13], *[math.nan] * 7]
        frames.append(TABLES["progress"].frame(printed(loss) | {"evidence_id": f"{rank:016d}", "rank": rank}))
    finding = ask(MemoryCase({"progress": pl.concat(frames)}), "loss_divergence").findings[0]
    assert (finding.sign, finding.ranks, finding.numbers["step"]) == (
        ("own_loss_not_finite", (2,), 12) if own else ("loss_not_finite", (), 12)
    )


# Steps, samples and ranks that go wrong again

START = datetime(2026, 3, 1, tzinfo=UTC)
Place = tuple[int, int, int]  # rank, step, pass


def trained(
    bad: Mapping[Place, Sequence[str]] = {},
    *,
    ranks: int = 8,
    steps: int = 30,
    passes: Sequence[range] = (),
    jitter: float = 0.0,
    lasting: bool = False,
    shards: bool = False,
) -> pl.DataFrame:
    """`rank_progress`: each rank reads samples of its own, `bad` says where it went wrong and on which samples. Passes run the same steps again, to
    the last digit or with jitter. What goes wrong ends its pass (`lasting`) or passes."""
    rows = []
    rng = np.random.default_rng(3)
    for rank in range(ranks):
        line = 0
        for number, through in enumerate(passes or [range(steps)]):
            for step in through:
                line += 1
                is_bad = (rank, step, number) in bad
                loss = 2.5 - 0.01 * step + 0.003 * rank + jitter * float(rng.standard_normal())
                samples = list(bad.get((rank, step, number), [f"{rank}.{step}"]))
                rows.append({
                    "evidence_id": f"{rank:016d}", "record": f"L{line}", "rank": rank, "step": step, "loss": None if is_bad else loss,
                    "grad_norm": None if is_bad else 0.5, "is_finite": not is_bad, "sample_ids": samples,
                    "data_shard": f"shard-{rank}" if shards else None,
                })  # fmt: skip
                if is_bad and lasting:
                    break
    return TABLES["rank_progress"].rows(rows)


def files(*frames: pl.DataFrame, stale: Sequence[str] = ()) -> pl.DataFrame:
    ids = sorted({id_ for frame in frames for id_ in frame["evidence_id"]})
    return TABLES["evidence"].rows([{"evidence_id": i, "path": f"timings/{i}.jsonl", "is_stale": i in stale} for i in ids])


def placed(ranks: int = 8) -> pl.DataFrame:
    return TABLES["ranks"].rows([{"record": f"E{r}", "rank": r, "host": f"host-{r // 2}", "dp": r, "tp": 0} for r in range(ranks)])


def asked(progress: pl.DataFrame, question: str = "steps_again", **tables: pl.DataFrame) -> list[Finding]:
    case = MemoryCase({"rank_progress": progress, "evidence": files(progress), "ranks": placed()} | tables)
    outcome = ask(case, question)
    assert outcome.status != "failed", outcome.why
    return list(outcome.findings)


S = ["s7"]
ONE_RANK = {(5, 4, 0): ["a"], (5, 11, 0): ["b"], (5, 19, 0): ["c"]}


@pytest.mark.parametrize(
    ("bad", "options", "want"),
    [
        ({}, {}, None),
        ({(5, 12, 0): S}, {}, None),  # once: everything stays open
        ({(5, 12, 0): S, (2, 20, 0): S}, {}, ("sample_fails_again", ())),
        ({(5, 12, 0): [*S, "x", "y"], (2, 20, 0): ["u", *S]}, {}, ("sample_fails_again", ())),  # what two batches share
        ({(5, 12, 0): S, (4, 12, 0): S}, {}, None),  # copies of one batch, at once
        ({(5, 12, 0): S, (5, 20, 0): S}, {}, None),  # on one rank only: sample or chip
        (ONE_RANK, {}, ("same_rank_again", (5,))),
        (ONE_RANK | {(5, 19, 0): ["a"]}, {}, None),  # not other samples each time
        (ONE_RANK | {(1, 8, 0): ["d"], (2, 9, 0): ["e"]}, {}, None),  # others go wrong as well
        (ONE_RANK, {"ranks": 6}, ("same_rank_again", (5,))),
        ({(2, 4, 0): ["a"], (2, 11, 0): ["b"], (2, 19, 0): ["c"]}, {"ranks": 3}, None),  # of three ranks, chance
        ({(5, 12, 0): ["5.12"]}, {"passes": (range(16), range(8, 30))}, ("not_again_bitwise", (5,))),
        ({(5, 12, 0): ["5.12"]}, {"passes": (range(16), range(8, 30)), "lasting": True}, ("not_again_bitwise", (5,))),
        ({(5, 12, 0): ["5.12"]}, {"passes": (range(16), range(8, 30)), "jitter": 0.01}, ("not_again", ())),
        ({(5, 12, 0): S, (5, 12, 1): S}, {"passes": (range(16), range(8, 30))}, ("again", ())),
        ({(5, 12, 0): S}, {"passes": (range(16), range(8, 30))}, None),  # the second pass read other samples there
    ],
)
def test_what_goes_wrong_again_tells_data_from_chip(bad: Mapping[Place, Sequence[str]], options: dict[str, Any], want: Any) -> None:
    found = asked(trained(bad, **options))
    assert (found[0].sign, found[0].ranks) == want if want else found == []
    assert len(found) == (want is not None)


def test_a_sample_that_was_sound_in_another_step_is_not_bad() -> None:
    data = trained({(5, 12, 0): S, (2, 20, 0): S})
    sound = data.with_columns(
        pl.when((pl.col("rank") == 1) & (pl.col("step") == 3)).then(pl.lit(S)).otherwise("sample_ids").alias("sample_ids")
    )
    assert [f.sign for f in asked(data)] == ["sample_fails_again"]
    assert asked(sound) == []


def test_findings_say_every_time_it_failed_and_from_where_the_state_is_wrong() -> None:
    (finding,) = asked(trained(ONE_RANK))
    assert [(f["rank"], f["step"], f["host"], f["record"]) for f in finding.numbers["failures"]] == [
        (5, 4, "host-2", "L5"), (5, 11, "host-2", "L12"), (5, 19, "host-2", "L20"),
    ]  # fmt: skip
    assert (finding.numbers["first_divergence_step"], finding.hosts, len(finding.cites)) == (4, ("host-2",), 3)


def test_ranks_that_spread_it_to_each_other_are_no_failures_of_their_own() -> None:
    everywhere = {(rank, 12, 0): [f"{rank}"] for rank in range(8)}
    assert asked(trained(everywhere)) == []


def verdict_of(progress: pl.DataFrame) -> Any:
    case = MemoryCase({"rank_progress": progress, "evidence": files(progress), "ranks": placed()})
    outcomes = [ask(case, name) for name in ("loss_anomaly", "steps_again", "replica_divergence")]
    return diagnose(outcomes, roster(case))


def nan_to_the_end(data: pl.DataFrame, after: int, at_fault: int) -> pl.DataFrame:
    """From a step on every rank has NaN, and the one at fault a step earlier."""
    gone = (pl.col("step") > after) | ((pl.col("step") == after) & (pl.col("rank") == at_fault))
    return data.with_columns(
        *(pl.when(~gone).then(name).alias(name) for name in ("loss", "grad_norm")), (pl.col("is_finite") & ~gone).alias("is_finite")
    )


def test_probabilities_stay_open_after_one_time_and_close_with_more() -> None:
    once = verdict_of(nan_to_the_end(trained({(5, 20, 0): S}), 20, 5))
    share = {h.cause: h.probability for h in once.hypotheses if h.ranks == (5,)}
    assert once.ranks == (5,)
    assert min(share["bad_sample"], share["silent_data_corruption"]) > 5e-4, "one time alone rules neither out"
    assert once.data["sample_ids"] == S
    sample = verdict_of(nan_to_the_end(trained({(5, 20, 0): S, (2, 9, 0): S}), 20, 5))
    assert (sample.cause, sample.ranks, sample.data["sample_ids"]) == ("bad_sample", (5,), S)
    chip = verdict_of(nan_to_the_end(trained({(5, 20, 0): S, (5, 9, 0): ["a"], (5, 4, 0): ["b"]}), 20, 5))
    assert (chip.cause, chip.ranks) == ("silent_data_corruption", (5,))


# Samples that exceptions name


def raised(*rows: tuple[int, str, str, int], id_: str = "e" * 16) -> pl.DataFrame:
    """`log_events`: rank, host, sample, seconds after the start."""
    return TABLES["log_events"].rows([
        {
            "evidence_id": id_, "record": f"L{number + 1}", "rank": rank, "host": host, "signature": "python_traceback", "exception": "ValueError",
            "sample_ids": [sample], "logged_at": START + timedelta(seconds=at), "message": f"sample {sample}: 59 values where 64 are",
        }
        for number, (rank, host, sample, at) in enumerate(rows)
    ])  # fmt: skip


def listed(sample: str, at: float, decision: str = "add", *, id_: str = "c" * 16, **failed: Any) -> pl.DataFrame:
    row = {"evidence_id": id_, "record": "L1", "sample_id": sample, "decided_at": START + timedelta(seconds=at), "decision": decision}
    return TABLES["quarantines"].rows([row | failed])


def sample_findings(logs: pl.DataFrame, *, stale: pl.DataFrame | None = None, **tables: pl.DataFrame) -> list[tuple[str, str]]:
    frames = [logs, *tables.values(), *([stale] if stale is not None else [])]
    of_stale = sorted(set(stale["evidence_id"])) if stale is not None else ()
    case = MemoryCase(
        {"log_events": logs, "evidence": files(*frames, stale=of_stale)} | tables, {"log_events": stale} if stale is not None else {}
    )
    outcome = ask(case, "sample_again")
    assert outcome.status != "failed", outcome.why
    return [(finding.sign, ",".join(finding.numbers.get("sample_ids", ()))) for finding in outcome.findings]


ONCE = (3, "host-b", "131", 0)


@pytest.mark.parametrize(
    ("now", "earlier", "want"),
    [
        ([ONCE], [], []),
        ([ONCE, (2, "host-b", "131", 1)], [], []),  # a copy of the batch, at once
        ([ONCE, (1, "host-a", "131", 900)], [], [("fails_elsewhere", "131")]),
        ([ONCE, (3, "host-b", "131", 900)], [], [("fails_again", "131")]),
        ([ONCE], [(6, "host-d", "131", -5000)], [("fails_elsewhere", "131")]),
        ([ONCE], [(3, "host-b", "131", -5000)], [("fails_again", "131")]),
        ([ONCE], [(6, "host-d", "88", -5000)], []),
        ([ONCE, (3, "host-b", "7", 100), (2, "host-b", "19", 300)], [], [("other_samples", "")]),
        ([ONCE, (3, "host-b", "7", 100), (1, "host-a", "19", 300)], [], []),
    ],
)
def test_a_sample_that_fails_again_elsewhere_is_bad(now: list[Any], earlier: list[Any], want: list[Any]) -> None:
    assert sample_findings(raised(*now), stale=raised(*earlier, id_="f" * 16) if earlier else None) == want


READING = ("__getitem__ (dataset.py:118)", "fetch (torch/utils/data/_utils/fetch.py:52)")


@pytest.mark.parametrize(
    ("exception", "text", "frames", "names"),
    [
        ("PIL.UnidentifiedImageError", "cannot identify image file 'shard-00412/5737478.jpg'", READING, ("shard-00412/5737478.jpg",)),
        ("json.decoder.JSONDecodeError", "Expecting value: line 1 column 1 (char 0), record 777", READING, ("777",)),
        ("OSError", "image file is truncated (12 bytes not processed)", READING, ()),
        ("zlib.error", "Error -3 while decompressing data: incorrect header check", READING, ()),
        ("UnicodeDecodeError", "'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte (doc: 19)", READING, ("19",)),
        ("json.decoder.JSONDecodeError", "Expecting value: record 3", ("load_config (train.py:3)",), None),  # no code that reads data
        ("IndexError", "index 5 is out of bounds for axis 0 with size 4", READING, None),  # a bug, whatever the number
        ("KeyError", "'input_ids'", READING, None),
        (None, None, (), None),
    ],
)
def test_an_exception_that_tells_unreadable_bytes_names_its_sample(
    exception: str | None, text: str | None, frames: Any, names: Any
) -> None:
    assert is_unreadable(exception, text, frames) == (names is not None)
    assert sample_names(exception, text, frames) == (names or ())


def test_what_was_written_down_of_a_sample_counts_once_and_a_list_that_is_not_read_is_told() -> None:
    elsewhere = listed("131", -100.0, what="exception", rank=0, host="host-a", step=4, failed_path="logs/rank_0.log", failed_record="L9")
    assert sample_findings(raised(ONCE), quarantines=elsewhere) == [("fails_elsewhere", "131"), ("read_again", "")]
    this = listed("131", 100.0, what="exception", rank=3, host="host-b", failed_path=f"timings/{'e' * 16}.jsonl", failed_record="L1")
    assert sample_findings(raised(ONCE), quarantines=this) == [], "it is this very failure"
    released = pl.concat([elsewhere, listed("131", -50.0, "release")])
    assert sample_findings(raised(ONCE), quarantines=released) == [("fails_elsewhere", "131")]


def test_failures_name_the_launch_that_their_path_tells() -> None:
    logs = raised(ONCE)
    evidence = TABLES["evidence"].rows([{"evidence_id": "e" * 16, "path": "logs/attempt_2/3/stderr.log", "is_stale": False}])
    (failure,) = failures(MemoryCase({"log_events": logs, "evidence": evidence}))
    assert (failure.attempt, failure.row()["path"]) == (2, "logs/attempt_2/3/stderr.log")


# Back to before the first divergence


def sums(steps: Sequence[int], at_fault: int | None, since: int, *, ranks: int = 4) -> pl.DataFrame:
    """Checksums of replicas at these steps; from `since` on one of them holds other bits."""
    return TABLES["rank_progress"].rows([
        {
            "evidence_id": f"{rank:016d}", "record": f"L{step}", "rank": rank, "step": step,
            "param_checksum": f"{step}{'!' if rank == at_fault and step >= since else ''}",
        }
        for rank in range(ranks) for step in steps
    ])  # fmt: skip


def saved(*steps: int) -> pl.DataFrame:
    return TABLES["log_events"].rows([
        {"evidence_id": "d" * 16, "record": f"L{n}", "signature": "checkpoint_save", "step": s, "message": f"saved checkpoint at step {s} to /c/{s}"}
        for n, s in enumerate(steps)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("progress", "cause", "noticed", "first", "back"),
    [
        (sums(range(60), 2, 42), "silent_data_corruption", 42, 42, 40),
        (sums(range(0, 61, 10), 2, 42), "silent_data_corruption", 50, 41, 40),  # checksums now and then: wrong since any step after 40
        (sums(range(0, 61, 20), 2, 42), "silent_data_corruption", 60, 41, 40),
        (sums(range(0, 61, 15), 2, 38), "silent_data_corruption", 45, 31, 30),
    ],
)
def test_a_rollback_goes_to_before_the_first_divergence_not_to_where_it_was_noticed(
    progress: pl.DataFrame, cause: str, noticed: int, first: int, back: int
) -> None:
    timed = TABLES["steps"].rows([{"record": f"L{step}", "rank": rank, "step": step} for rank in range(4) for step in range(70)])
    case = MemoryCase(
        {"rank_progress": progress, "steps": timed, "log_events": saved(10, 20, 30, 40, 50), "evidence": files(progress, saved(10))}
    )
    outcomes = [ask(case, "replica_divergence")]
    verdict = diagnose(outcomes, roster(case))
    findings = outcomes[0].findings
    assert (verdict.cause, verdict.ranks, verdict.step) == (cause, (2,), noticed)
    assert first_divergence(verdict, findings) == first
    told = rollback(case, step=first, at=None, cause=cause)
    assert told.save is not None
    assert (told.save.step, told.before) == (back, first)


def test_checksums_that_parted_before_the_nan_move_the_rollback_and_other_causes_are_left_alone() -> None:
    verdict = verdict_of(nan_to_the_end(trained({(5, 20, 0): S}), 20, 5))
    parted = ask(MemoryCase({"rank_progress": sums(range(30), 1, 14)}), "replica_divergence").findings
    assert (verdict.cause, verdict.step, first_divergence(verdict, parted)) == ("numeric_divergence", 20, 14)
    assert first_divergence(replace(verdict, cause="code_hang"), parted) == 20
    assert first_divergence(replace(verdict, step=None), ()) is None
