"""What every plugin owes, checked for all by listing the folders: a new one is under test before its own tests are written."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _house import CASES, DUMPED, FAULTY, FOLDERS, HEALTHY, ROOT, SAMPLE, copy_dumps, frames, memory_case, read_folder, slow_but, truth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors._unpickle import PickleRefused, load
from rca import plugins
from rca.case import MemoryCase
from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS
from rca.errors import EvidenceError
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding, Sign, Skip, Source
from rca.weighing import bits

COLLECTORS = plugins.names("collectors")
ANALYSES = plugins.names("rca.analyses")
FIXTURES = ROOT / "tests" / "collectors" / "fixtures"
HEAVY = ("duckdb", "torch", "sklearn", "scipy", "pandas", "plotly", "streamlit", "zstandard", "numpy", "pyarrow")
OF_THE_READER = frozenset({"evidence", "readings"})  # tables that the reading of files fills, not a collector
NUM_REAL = 6  # distinct real files a collector is tried on, of as many sizes
NUM_MUTANTS = 24  # of each collector, three of each kind of damage; make fuzz goes on from there
RECORD = re.compile(r"(?:(?P<key>\w+)/)?(?P<letter>[LETM])(?P<number>\d+)(?:/.+)?$")
TOKEN = re.compile(rb'"[^"\n]{0,60}"|\d+|[A-Za-z_]{3,}')
ANYTHING = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
# What readers trip over: numbers that do not fit, digits that are none, halves of characters, endless nesting, unclosed strings.
NASTY = (
    *(
        b"-1",
        b"NaN",
        b"1e999",
        b"9223372036854775808",
        b"9" * 5000,
        b'"\xc2\xb2"',
        b'"\\ud800"',
        b"\xff\xfe",
        b"\x00",
        b"null",
        b"[]",
        b"{}",
    ),
    *(b'""', b"[" * 3000, b'{"a":' * 3000, b'"', b"\x1b[2J", b"0x" + b"f" * 40, b"," * 200, b"\r\n\r\n", b"x" * 200_000, "\u2028".encode()),
)


@cache
def corpus(name: str) -> tuple[bytes, ...]:
    """A few real files that the collector claims, from small to large."""
    collector = plugins.load("collectors", name)
    found: dict[bytes, None] = {}
    for path in sorted(p for folder in (CASES, FIXTURES) for p in folder.rglob("*") if p.is_file() and p.name != "case.duckdb"):
        if ".tmp-" not in str(path) and collector.claims(path.name, path.read_bytes()[:65536]):
            found.setdefault(path.read_bytes())
    distinct = sorted(found, key=lambda data: (len(data), data))
    step = max(1, len(distinct) // NUM_REAL)
    return tuple(distinct[::step][:NUM_REAL])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


def source_of(folder: Path, data: bytes, *, compression: str = "none", name: str = "rank_3") -> Source:
    file = folder / f"{zlib.crc32(data):08x}-{len(data)}"
    file.write_bytes(data)
    return Source(name, file, len(data), compression)  # type: ignore[arg-type]


def rows_of(name: str, source: Source) -> list[Any]:
    """All that a collector gives for a file; an EvidenceError is an answer too. Anything else it raises fails the test."""
    collector = plugins.load("collectors", name)
    found: list[Any] = []
    try:
        for item in collector.read(source):
            if isinstance(item, Skip):
                assert item.why
                found.append(item)
                continue
            table, frame = item
            assert table is TABLES[table.name]
            assert table.name in collector.EMITS
            assert dict(frame.schema) == dict(table.schema)
            assert list(frame.columns) == table.schema.names()
            found.append((table.name, frame.rows()))
    except EvidenceError as error:
        found.append(error.why)
    finally:
        source.file.unlink()
    return found


def document(data: bytes) -> Any:
    """What a file holds, when it is one object: JSON or a pickle (read by the unpickler that runs nothing)."""
    if data[:1] == b"\x80":
        import io

        try:
            found = load(io.BytesIO(data), len(data))
            return found if isinstance(found, dict | list) else None  # torch's older files are several pickles, a number first
        except (PickleRefused, EOFError, pickle.UnpicklingError):
            return None  # of classes, as torch writes them
    try:
        return json.loads(data)
    except ValueError:
        return None


def num_places(data: bytes, key: str | None) -> int:
    """How many entries or (of text) lines a record can point at."""
    if data[:4] == b"PAR1":
        import io

        return pl.read_parquet(io.BytesIO(data)).height
    if b"brain.Event:" in data[:64]:
        at = count = 0
        while at < len(data):  # length, checksum, record, checksum
            at, count = at + 16 + int.from_bytes(data[at : at + 8], "little"), count + 1
        return count
    whole = document(data)
    if whole is None:
        return data.count(b"\n") + 1
    if key is not None:
        return len(whole[key])
    inner = [] if isinstance(whole, list) else [value for value in whole.values() if isinstance(value, list | dict)]
    return max(1, *map(len, [whole, *inner]))


def mutants(name: str, rng: random.Random) -> list[bytes]:
    """Real files, damaged: cut, with bytes flipped, parts dropped, doubled, swapped for those of another, tokens replaced by nasty ones."""
    real = corpus(name)
    found = []
    for number in range(NUM_MUTANTS):
        data = bytearray(rng.choice(real))
        a, b = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
        match number % 8:
            case 0:
                del data[a:]
            case 1:
                for _ in range(rng.randrange(1, 20)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
            case 2:
                del data[a:b]
            case 3:
                data[a:a] = data[a:b] * rng.randrange(1, 4)
            case 4:
                other = rng.choice(real)
                data[a:] = other[min(a, len(other)) :]
            case _:
                tokens = list(TOKEN.finditer(bytes(data)))
                for token in sorted(rng.sample(tokens, min(len(tokens), rng.randrange(1, 4))), key=lambda m: -m.start()):
                    data[token.start() : token.end()] = rng.choice(NASTY)
        found.append(bytes(data))
    return found


# Collectors


@pytest.mark.parametrize("name", COLLECTORS)
class TestCollector:
    def test_says_what_it_reads_and_what_it_gives(self, name: str) -> None:
        collector = plugins.load("collectors", name)
        assert (collector.__doc__ or "").strip().splitlines()[0]
        assert collector.EMITS
        assert set(collector.EMITS) <= set(TABLES)
        assert all(TABLES[table].from_evidence for table in collector.EMITS)
        assert callable(collector.claims)
        assert callable(collector.read)

    def test_there_are_real_files_to_test_it_on(self, name: str) -> None:
        assert corpus(name)

    def test_recognises_content_not_names(self, name: str) -> None:
        collector = plugins.load("collectors", name)
        for data in corpus(name):
            assert collector.claims("x", data[:65536])
            assert collector.claims("nccl_trace_rank_0.pickle", data[:65536])

    def test_claims_nothing_empty_or_foreign(self, name: str) -> None:
        collector = plugins.load("collectors", name)
        prose = b"The job was restarted by hand at noon. Nobody knows which host it was.\n" * 50
        for data in (
            b"",
            b"\n\n\n",
            prose,
            b"\x89PNG\r\n\x1a\n" + bytes(200),
            b"\x7fELF" + bytes(300),
            b"{}",
            b"[]",
            b"rank\n1\n",
            b"\x80\x04N.",
        ):
            assert not collector.claims("rank_0", data), data[:20]

    @ANYTHING
    @given(data=st.binary(max_size=400), label=st.text(max_size=20))
    def test_never_raises_on_random_bytes(self, name: str, folder: Path, data: bytes, label: str) -> None:
        assert plugins.load("collectors", name).claims(label, data) in (True, False)
        rows_of(name, source_of(folder, data))

    def test_never_raises_on_a_truncated_file(self, name: str, folder: Path) -> None:
        for data in corpus(name):
            for end in {0, 1, 2, 7, len(data) // 3, len(data) // 2, len(data) - 2, len(data) - 1}:
                plugins.load("collectors", name).claims("x", data[:end])
                rows_of(name, source_of(folder, data[:end]))

    def test_never_raises_on_a_damaged_file(self, name: str, folder: Path) -> None:
        for data in mutants(name, random.Random(f"damaged {name}")):
            plugins.load("collectors", name).claims("x", data[:65536])
            rows_of(name, source_of(folder, data))

    def test_never_raises_on_a_value_of_a_wrong_kind(self, name: str, folder: Path) -> None:
        """Words and numbers spread over a small file of each form, each replaced by everything that readers trip over."""
        for data in corpus(name)[:3]:
            tokens = list(TOKEN.finditer(data))
            for token in tokens[:: max(1, len(tokens) // 8)]:
                for nasty in NASTY:
                    rows_of(name, source_of(folder, data[: token.start()] + nasty + data[token.end() :]))

    def test_never_raises_on_a_torn_or_damaged_compressed_file(self, name: str, folder: Path) -> None:
        rng = random.Random(f"compressed {name}")
        import zstandard

        for data in corpus(name):
            long = data if len(data) > 100_000 else data + rng.randbytes(100_000)  # the head is whole, the tear lies behind it
            for compression, packed in (("gzip", gzip.compress(long, 1)), ("zstd", zstandard.compress(long))):
                damaged = bytearray(packed)
                for _ in range(8):
                    damaged[rng.randrange(len(packed) // 2, len(packed))] ^= 0xFF
                for torn in (packed[: len(packed) // 2], packed[:-3], packed + b"trailing rubbish", bytes(damaged), packed[:20]):
                    source = source_of(folder, torn, compression=compression)
                    assert isinstance(source.head, bytes)
                    rows_of(name, source)

    def test_a_file_that_is_gone_is_an_error_that_names_it_or_what_was_already_seen_of_it(self, name: str, folder: Path) -> None:
        for data in corpus(name)[:1]:
            source = source_of(folder, data)
            assert source.head
            source.file.unlink()
            try:
                items = list(plugins.load("collectors", name).read(source))
            except (EvidenceError, FileNotFoundError):
                continue
            assert len(data) <= len(source.head)
            assert items

    def test_same_bytes_give_same_rows(self, name: str, folder: Path) -> None:
        for data in corpus(name):
            first, second = (rows_of(name, source_of(folder, data)) for _ in range(2))
            assert first == second

    def test_compression_changes_no_row(self, name: str, folder: Path) -> None:
        import zstandard

        for data in corpus(name)[:2]:
            plain = rows_of(name, source_of(folder, data))
            assert rows_of(name, source_of(folder, gzip.compress(data), compression="gzip")) == plain
            assert rows_of(name, source_of(folder, zstandard.compress(data), compression="zstd")) == plain

    def test_every_row_points_at_a_place_in_the_file(self, name: str, folder: Path) -> None:
        num_rows = 0
        for data in corpus(name):
            for item in rows_of(name, source_of(folder, data)):
                records = [item.record] if isinstance(item, Skip) else []
                if isinstance(item, tuple):
                    at = TABLES[item[0]].schema.names().index("record")
                    records = [row[at] for row in item[1]]
                    num_rows += len(records)
                    assert None not in records
                for record in filter(None, records):
                    place = RECORD.fullmatch(record)
                    assert place, record
                    number, count = int(place["number"]), num_places(data, place["key"])
                    assert (1 <= number <= count) if place["letter"] == "L" else (0 <= number < count), f"{record} of {count}"
        assert num_rows

    def test_leaves_identity_to_the_reader_of_the_file(self, name: str, folder: Path) -> None:
        for data in corpus(name)[:1]:
            for item in rows_of(name, source_of(folder, data)):
                if isinstance(item, tuple) and "evidence_id" in TABLES[item[0]].schema:
                    at = TABLES[item[0]].schema.names().index("evidence_id")
                    assert {row[at] for row in item[1]} <= {None}


def test_importing_collectors_and_questions_loads_nothing_heavy() -> None:
    modules = [f"collectors.{n}" for n in COLLECTORS] + [f"rca.analyses.{n}" for n in ANALYSES]
    code = (
        f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        f"    print(name, *sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    assert done.stdout.split() == modules


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_pickle_that_would_run_something_runs_nothing(name: str, folder: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    for value in (
        Trap(),
        {"version": "2.10", "pg_config": {}, "entries": [{"profiling_name": Trap()}]},
        {"entries": Trap(), "version": "2"},
    ):
        rows_of(name, source_of(folder, pickle.dumps(value, 2)))
        rows_of(name, source_of(folder, pickle.dumps(value, 2)[:-3]))
    assert not (tmp_path / "ran").exists()


# Analyses


def facts(findings: Sequence[Finding]) -> list[Any]:
    """All that a finding says, order of rows aside."""
    return [
        (f.id, f.says, f.ranks, f.hosts, f.groups, f.explains, json.dumps(dict(f.numbers), sort_keys=True, default=str), f.cites)
        for f in findings
    ]


# One case for all questions, as when a job is judged: what one derives (the wait graph, the logs), the next finds.


@cache
def known(case_name: str) -> MemoryCase:
    return memory_case(case_name)


@cache
def shuffled(case_name: str, seed: int) -> MemoryCase:
    """The same job with the rows of every table in another order."""
    return MemoryCase({name: frame.sample(fraction=1.0, shuffle=True, seed=seed) for name, frame in frames(case_name).items()})


@cache
def relabelled(case_name: str, seed: int) -> tuple[MemoryCase, Mapping[int, int]]:
    """The same job with its ranks renamed, in every column that holds a global rank, memberships and peers included; old -> new."""
    ranks = sorted(frames(case_name)["memberships"]["rank"].unique().to_list())
    new = dict(zip(ranks, random.Random(seed).sample(ranks, len(ranks)), strict=True))
    found = {}
    for name, frame in frames(case_name).items():
        columns = [c for c in ("rank", "src", "dst") if c in frame.columns]
        found[name] = frame.with_columns(pl.col(c).replace(list(new), list(new.values())) for c in columns)
    return MemoryCase(found), new


def findings_of(case: MemoryCase, name: str) -> tuple[Finding, ...]:
    outcome = ask(case, name)
    assert outcome.status != "failed", outcome.why
    return outcome.findings


class Watched(MemoryCase):
    """A case that notes what is asked of it."""

    def __init__(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().__init__(tables)
        self.asked: list[str] = []

    def table(self, name: str, *, where: str | None = None, with_stale: bool = False) -> pl.LazyFrame:
        self.asked.append(name)
        return super().table(name, where=where, with_stale=with_stale)


@pytest.mark.parametrize("name", ANALYSES)
class TestAnalysis:
    def test_says_what_it_asks_and_how_it_answers(self, name: str) -> None:
        analysis = plugins.load("rca.analyses", name)
        doc = (analysis.__doc__ or "").strip()
        assert doc.splitlines()[0].endswith("?") or "?" in doc.splitlines()[0]
        assert "1." in doc, "no numbered steps"

    def test_needs_and_uses_declared_tables(self, name: str) -> None:
        analysis = plugins.load("rca.analyses", name)
        assert analysis.NEEDS
        assert set(analysis.NEEDS) | set(analysis.USES) <= set(TABLES)
        assert not set(analysis.NEEDS) & set(analysis.USES)

    def test_asks_for_no_other_table(self, name: str) -> None:
        analysis = plugins.load("rca.analyses", name)
        for case_name in FOLDERS:
            case = Watched(frames(case_name))
            ask(case, name)
            assert set(case.asked) <= {*analysis.NEEDS, *analysis.USES, *OF_THE_READER}

    def test_every_sign_has_bits_for_each_cause_it_lists_and_no_other(self, name: str) -> None:
        signs: Mapping[str, Sign] = plugins.load("rca.analyses", name).SIGNS
        assert signs
        declared = {(sign, cause) for sign, what in signs.items() for cause in what.causes}
        weighed = {(sign, cause) for analysis, sign, cause in bits() if analysis == name and sign != "clear"}
        assert declared == weighed
        for what in signs.values():
            assert what.family
            assert set(what.causes) <= set(CAUSES)

    def test_without_the_rows_it_needs_it_is_blind_and_never_called(self, name: str) -> None:
        analysis = plugins.load("rca.analyses", name)
        for missing in analysis.NEEDS:
            case = Watched({**frames(SAMPLE), missing: TABLES[missing].frame()})
            outcome = ask(case, name)
            assert (outcome.status, outcome.findings) == ("blind", ())
            assert missing in outcome.why
            assert case.asked == list(analysis.NEEDS), "more was asked for than whether the needed tables have rows"
        assert ask(MemoryCase({}), name).status == "blind"

    @pytest.mark.parametrize("case_name", HEALTHY)
    def test_finds_nothing_in_a_healthy_job(self, name: str, case_name: str) -> None:
        assert findings_of(known(case_name), name) == ()

    @pytest.mark.parametrize("case_name", FOLDERS)
    def test_order_of_rows_does_not_matter(self, name: str, case_name: str) -> None:
        expected = facts(findings_of(known(case_name), name))
        for seed in (1, 2):
            assert facts(findings_of(shuffled(case_name, seed), name)) == expected

    @pytest.mark.parametrize("case_name", FOLDERS)
    def test_relabelled_ranks_give_relabelled_suspects(self, name: str, case_name: str) -> None:
        expected = findings_of(known(case_name), name)
        for seed in (1, 2):
            case, new = relabelled(case_name, seed)
            renamed = findings_of(case, name)

            def named(findings: Sequence[Finding], as_: Mapping[int, int]) -> list[Any]:
                return sorted((f.sign, sorted(as_[r] for r in f.ranks), sorted(as_[r] for r in f.explains), f.hosts) for f in findings)

            assert named(renamed, {rank: rank for rank in new}) == named(expected, new)

    @pytest.mark.parametrize("case_name", FOLDERS)
    def test_every_finding_cites_rows_that_exist(self, name: str, case_name: str) -> None:
        tables = frames(case_name)
        for finding in findings_of(known(case_name), name):
            assert finding.cites, finding.id
            assert finding.sign in plugins.load("rca.analyses", name).SIGNS
            assert finding.analysis == name
            for cite in finding.cites:
                rows = tables[cite.table].filter((pl.col("evidence_id") == cite.evidence_id) & (pl.col("record") == cite.record))
                assert rows.height, cite
                assert (CASES / case_name / cite.path).is_file()
                assert cite.text


@pytest.mark.parametrize("case_name", slow_but(*DUMPED, of=FAULTY))
@pytest.mark.parametrize("lost", ["fr", "stacks"])
def test_a_lost_file_is_not_blamed_on_its_rank(case_name: str, lost: str, tmp_path: Path) -> None:
    """Each rank in turn loses its recorder dump, or its stacks: nobody is accused that did nothing."""
    at_fault = set(truth(case_name)["first_failing_ranks"])
    whole = copy_dumps(case_name, tmp_path / "whole")
    for rank in range(json.loads((whole / "topology.json").read_text())["world_size"]):
        left = Path(shutil.copytree(whole, tmp_path / f"without-{rank}"))
        for path in [p for p in (left / lost).rglob("*") if re.search(rf"rank_{rank}\b", p.name)]:
            path.unlink()
        with read_folder(left) as tables:
            accused = judge(MemoryCase(tables)).verdict.ranks
        assert set(accused) <= at_fault, f"without what rank {rank} left in {lost}"


def test_findings_of_one_case_have_distinct_ids() -> None:
    for case_name in FOLDERS:
        ids = [f.id for name in ANALYSES for f in findings_of(known(case_name), name)]
        assert len(set(ids)) == len(ids)


# Vocabularies


def test_bits_belong_to_questions_and_causes_that_exist() -> None:
    text = (ROOT / "rca" / "catalogue" / "bits.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len({(r["analysis"], r["sign"], r["cause"]) for r in rows}) == len(rows), "a line twice"
    for row in rows:
        assert row["analysis"] in ANALYSES
        assert row["cause"] in CAUSES
        assert row["sign"] == "clear" or row["sign"] in plugins.load("rca.analyses", row["analysis"]).SIGNS
        assert math.isfinite(float(row["bits"]))
        assert 0 < float(row["bits"]) <= 20
        assert row["why"].strip()


def test_vocabularies_are_closed_and_contain_unknown() -> None:
    for vocabulary in (LAYERS, ATTRIBUTIONS, tuple(CAUSES)):
        assert "unknown" in vocabulary
        assert len(set(vocabulary)) == len(vocabulary)
    assert "human" in ACTIONS
    for name, cause in CAUSES.items():
        assert name == cause.name
        assert cause.layer in LAYERS
        assert cause.attribution in ATTRIBUTIONS
        assert cause.action in ACTIONS
        assert cause.means


def test_priors_are_positive_and_sum_to_one() -> None:
    assert all(cause.prior > 0 for cause in CAUSES.values())
    assert math.isclose(sum(cause.prior for cause in CAUSES.values()), 1.0, abs_tol=1e-9)


def test_every_table_says_what_one_row_is_and_what_each_column_holds() -> None:
    for name, table in TABLES.items():
        assert name == table.name
        assert table.grain
        assert all(column.doc for column in table.columns)
        if table.from_evidence:
            assert table.schema.names()[:2] == ["evidence_id", "record"]


def test_every_table_that_a_question_needs_is_emitted_by_a_collector() -> None:
    emitted = {table for name in COLLECTORS for table in plugins.load("collectors", name).EMITS}
    used: dict[str, list[str]] = defaultdict(list)
    for name in ANALYSES:
        for table in (*plugins.load("rca.analyses", name).NEEDS, *plugins.load("rca.analyses", name).USES):
            used[table].append(name)
    assert sorted(set(used) - emitted - OF_THE_READER) == []
