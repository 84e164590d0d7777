"""A campaign over simulated incidents, small: what it plays, that it goes on where it was cut short, that every row can be made anew."""

from __future__ import annotations

import argparse
import json
import resource
from collections import Counter
from pathlib import Path

import pytest

from apps.verbs import drill as verb
from rca.drills import simulated
from rca.drills._campaign_answer import row
from rca.drills._campaign_fit import SHARPNESSES, _Problem
from rca.drills._campaign_plan import CALIBRATING, FITTED, FITTED_SEED, QUIET, REPORTED, SEEDS, Wanted, drawn, fitted, played, reported
from rca.drills._campaign_tables import tables
from rca.drills._campaign_weights import told
from rca.errors import UsageError
from rca.weighing import set_by_hand

SMALL = Wanted("gpu_lost", 8, 3)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return parser.parse_args(words)


def test_kinds_sizes_and_seeds_of_the_fit_are_not_those_reported() -> None:
    assert set(simulated.KINDS) >= CALIBRATING
    told = reported(simulated.KINDS, REPORTED, SEEDS)
    learned = fitted(CALIBRATING, FITTED, 6)
    assert not {w.ranks for w in told} & {w.ranks for w in learned}
    assert max(w.seed for w in told) < FITTED_SEED <= min(w.seed for w in learned)
    unseen = {w.kind for w in told} - CALIBRATING
    assert sum(simulated.class_of(kind) == "fault" for kind in unseen) >= 30
    assert (
        {simulated.class_of(kind) for kind in unseen}
        == {simulated.class_of(kind) for kind in CALIBRATING}
        == {*QUIET, "fault", "unanswerable"}
    )


def test_a_standard_campaign_is_large_enough_for_what_it_is_to_prove() -> None:
    told = reported(simulated.KINDS, REPORTED, SEEDS)
    assert len({w.key for w in told}) == len(told) >= 1200
    assert {w.kind for w in told} == set(simulated.KINDS)
    of_class = Counter(simulated.class_of(w.kind) for w in told)
    assert of_class["healthy"] >= 200
    assert {w.ranks for w in told} == set(REPORTED)
    assert {w.way for w in told} == {"tables", "files"}


def test_an_incident_is_drawn_from_kind_size_and_seed_alone() -> None:
    assert drawn(SMALL) == drawn(Wanted("gpu_lost", 8, 3, "files"))
    assert len({drawn(Wanted("gpu_lost", 8, seed)) for seed in range(20)}) > 5
    with pytest.raises(UsageError, match=r"gpu_lost has no layout of 9 ranks: choose of 8, "):
        drawn(Wanted("gpu_lost", 9, 0))


def test_campaign_prints_its_tables_and_goes_on_where_it_was_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("campaign", "--out", str(tmp_path), "--kinds", "gpu_lost", "healthy_running", "--ranks", "8", "--seeds", "3", "--jobs", "1")
    verb.run(parse(*words))
    out = capsys.readouterr().out
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    document = json.loads((tmp_path / "campaign.json").read_text())
    assert {r["kind"] for r in document["runs"]} == {"gpu_lost", "healthy_running"}
    assert all(title in out.splitlines() for title in tables(document["runs"]))
    assert len(rows) == 1 + len(document["runs"])

    (tmp_path / "rows.jsonl").write_text("\n".join([*rows[:-1], rows[-1][:40]]))  # killed while it wrote its last row
    verb.run(parse(*words))
    again = json.loads((tmp_path / "campaign.json").read_text())
    whole = [line for line in (tmp_path / "rows.jsonl").read_text().splitlines() if line.endswith("}")]
    assert whole[: len(rows) - 1] == rows[:-1], "what was there is not made anew"
    assert len(whole) == len(rows)

    def timeless(runs: list[dict[str, object]]) -> list[dict[str, object]]:
        return sorted(({k: v for k, v in r.items() if k != "judged_s"} for r in runs), key=lambda r: str(r["kind"]))

    assert timeless(again["runs"]) == timeless(document["runs"])


def test_a_row_can_be_made_anew_as_files(tmp_path: Path) -> None:
    assert verb.run(parse("run", "gpu_lost", "--simulated", "--seed", "3", "--ranks", "8", "--out", str(tmp_path / "made"))) == 0
    truth = json.loads((tmp_path / "made" / "truth.json").read_text())
    assert truth["first_failing_ranks"] == played(SMALL).truth["first_failing_ranks"]
    assert sum(path.is_file() for path in (tmp_path / "made").rglob("*")) > 1
    with pytest.raises(UsageError, match="not empty"):
        verb.run(parse("run", "gpu_lost", "--simulated", "--out", str(tmp_path / "made")))
    with pytest.raises(UsageError, match="no simulated kind is called 'flood'"):
        verb.run(parse("run", "flood", "--simulated", "--out", str(tmp_path / "other")))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # to whoever writes as if the disk were full
    try:
        with pytest.raises(UsageError, match=r"half: the incident cannot be written \(File too large\)"):
            verb.run(parse("run", "gpu_lost", "--simulated", "--seed", "3", "--ranks", "8", "--out", str(tmp_path / "half")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "half").exists()


def test_what_the_fit_sees_gives_the_probabilities_that_the_verdict_states() -> None:
    """The same incident weighed by rca.diagnose and by the arrays of the fit, weights set by hand."""
    import numpy as np

    one = Wanted("user_exception", 8, 5)
    keys = sorted(set_by_hand())
    problem = _Problem([told(one)], keys, np.ones(1))
    _, is_right, is_named, *sharp = problem.told(np.array([set_by_hand()[key] for key in keys]))
    as_it_is = sharp[int(np.argmin(abs(SHARPNESSES - 1)))]
    assert row(one)["by_hand"] == (pytest.approx(float(as_it_is[0]), abs=1e-5), bool(is_right[0]))
    assert is_named[0]
