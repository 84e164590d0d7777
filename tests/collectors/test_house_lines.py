"""Lines of a trainer's own kind: the page's example is read, phases come together, a wrong file says where and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from _house import ROOT, call
from _sources import FIXTURES, rows_of, source_of

from collectors import house_lines
from rca.catalogues import line_adapters, read_site, site_fingerprint, use_site
from rca.errors import UsageError
from rca.line_adapters import parse

PAGE = (ROOT / "docs/site.md").read_text()
LOG = FIXTURES / "lines_house.log"
UNKNOWN_LINE = b"we are at 5\n"


@pytest.fixture(autouse=True)
def shipped_only() -> Iterator[None]:
    """No site but the test's own, before and after."""
    use_site(None)
    yield
    use_site(None)


def site(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "lines.yaml").write_text(text)
    return folder


def adapter(line: str, rest: str = "") -> str:
    return f"- name: ours\n  line: '{line}'\n{rest}"


def test_the_example_of_the_page_names_the_slow_rank(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n# lines\.yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(text.splitlines()) < 10
    (excerpt,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert LOG.read_text().startswith(excerpt)
    evidence = tmp_path / "lines_house.log"
    evidence.write_bytes(LOG.read_bytes())
    without = call("diagnose", evidence, "--case", tmp_path / "case-without")
    assert "Rank 5" not in without.out
    folder = site(tmp_path / "site", text)
    done = call("diagnose", evidence, "--site", folder, "--case", tmp_path / "case-with")
    shown = re.search(r"\$ rca diagnose lines_house\.log --site FOLDER\n    (.+)\n", PAGE)
    assert shown
    assert done.out.splitlines()[0] == shown[1]
    assert "lines.yaml (0 changed, 1 new)" in " ".join(done.out.split())
    before = site_fingerprint()
    use_site(read_site(site(folder, text.replace("gemm: compute_s", "gemm: comm_s"))))
    assert site_fingerprint() != before  # a case that was read with other adapters is built again
    assert "Rank 5" not in call("diagnose", evidence, "--site", folder, "--case", tmp_path / "case-with").out


@pytest.mark.parametrize(
    ("text", "log", "table", "expected"),
    [
        (  # several phases in a dict, as shipped
            "",
            (FIXTURES / "lines_dicts.log").read_bytes(),
            "steps",
            {"rank": 0, "step": 1, "step_s": 0.761, "compute_s": 0.304, "data_s": 0.001},
        ),
        (  # one phase a line: the lines of a step of a rank are one row, micro-batches are added up
            adapter(
                r"r(?P<rank>\d+) s(?P<step>\d+) (?P<phase>\w+) (?P<us>[\d.]+)us",
                "  columns: {fwd: compute_s, bwd: compute_s, load: data_s}\n",
            ),
            b"r0 s1 fwd 100us\nr1 s1 fwd 300us\nr0 s1 bwd 200us\nr0 s1 load 50us\nr0 s1 other 9us\nr0 s2 load x\n",
            "steps",
            {"record": "L1", "rank": 0, "step": 1, "compute_s": 0.0003, "data_s": 0.00005, "comm_s": None},
        ),
        (  # times by column and unit; what is no number is null
            adapter(r"(?P<host>\S+) step (?P<step>\d+) took (?P<step_ms>\S+) ms"),
            b"host-a.site step 7 took 1500 ms\nhost-a step 8 took nan ms\n",
            "steps",
            {"rank": None, "host": "host-a", "step": 7, "step_s": 1.5, "compute_s": None},
        ),
        (  # a loss without a rank is that of the job
            adapter(r"(?P<at>\S+ \S+) it (?P<step>\d+) loss (?P<loss>\S+) lr (?P<learning_rate>\S+)"),
            b"2026-03-02 10:00:01 it 5 loss 2.5 lr 1e-4\n",
            "progress",
            {"step": 5, "loss": 2.5, "learning_rate": 1e-4, "ended_at": None, "ended_at_local": "2026-03-02T10:00:01"},
        ),
    ],
)
def test_lines_become_rows(tmp_path: Path, text: str, log: bytes, table: str, expected: dict[str, object]) -> None:
    if text:
        use_site(read_site(site(tmp_path / "site", text)))
    assert house_lines.claims("x", log)
    tables, _ = rows_of(house_lines, source_of(tmp_path, log, "own.log"))
    first = tables[table][0]
    assert {name: first[name] for name in expected} == pytest.approx(expected)


def test_a_step_that_is_run_again_is_a_row_of_its_own(tmp_path: Path) -> None:
    use_site(
        read_site(
            site(tmp_path / "site", adapter(r"r(?P<rank>\d+) s(?P<step>\d+) (?P<phase>\w+) (?P<s>\d+)", "  columns: {fwd: compute_s}\n"))
        )
    )
    tables, _ = rows_of(house_lines, source_of(tmp_path, b"r0 s1 fwd 1\nr0 s2 fwd 2\nr0 s1 fwd 3\nr0 s2 fwd 4\n", "own.log"))
    assert [(row["step"], row["compute_s"]) for row in tables["steps"]] == [(1, 1.0), (2, 2.0), (1, 3.0), (2, 4.0)]


def test_nothing_is_claimed_where_no_line_fits(tmp_path: Path) -> None:
    assert line_adapters()
    assert not house_lines.claims("lines_house.log", LOG.read_bytes())
    assert not house_lines.claims("x", UNKNOWN_LINE)
    use_site(read_site(site(tmp_path / "site", adapter(r"at (?P<step>\d+) loss (?P<loss>\d+)"))))
    assert not house_lines.claims("x", UNKNOWN_LINE)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ("must be a list",)),
        ("a: [", ("no YAML",)),
        ("- 5\n", ("adapter 1", "must be a mapping of name, line, phases, columns")),
        ("- {name: x, line: y, colour: z}\n", ("adapter x", "colour", "allowed are name, line, phases, columns")),
        ("- {name: 'a b', line: y}\n", ("name", "must be a word")),
        (adapter("(?P<step>"), ("adapter ours, line", "no regular expression")),
        (adapter("(?=x)(?P<step>.)(?P<loss>.)"), ("adapter ours, line", "without lookaround")),
        (adapter("(?P<loss>.)"), ("line", "needs a group named step")),
        (adapter("(?P<step>.)"), ("line", "measures nothing")),
        (adapter("(?P<step>.)(?P<speed>.)"), ("line", "no group may be called speed; allowed are rank, step")),
        (adapter("(?P<step>.)(?P<phase>.)"), ("line", "exactly one of s, ms, us, ns")),
        (adapter("(?P<step>.)(?P<phase>.)(?P<ms>.)"), ("columns", "name at least one phase")),
        (adapter("(?P<step>.)(?P<loss>.)", "  columns: {a: step_s}\n"), ("columns", "there is no group phase")),
        (
            adapter("(?P<step>.)(?P<phase>.)(?P<ms>.)", "  columns: {a: speed}\n"),
            ("columns", "step_s, compute_s, comm_s, data_s, checkpoint_s"),
        ),
        (adapter("(?P<step>.)", "  phases: '(?P<ms>.)'\n"), ("phases", "a group named phase")),
        (2 * adapter("(?P<step>.)(?P<loss>.)"), ("adapter ours", "two have this name")),
    ],
)
def test_a_wrong_file_says_where_and_what_is_allowed(text: str, told: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        parse(text, "site/lines.yaml")
    assert all(word in str(error.value) for word in ("site/lines.yaml", *told)), str(error.value)


def test_a_wrong_adapter_stops_the_command(tmp_path: Path) -> None:
    folder = site(tmp_path / "site", adapter("(?P<step>.)"))
    done = call("inspect", LOG, "--site", folder)
    if "unrecognized arguments" in done.err:
        done = call("diagnose", LOG, "--site", folder)
    assert (done.code, "lines.yaml, adapter ours, line: measures nothing" in done.err) == (2, True)
    (folder / "lines.yaml").unlink()
    (folder / "line.yml").write_text("")
    with pytest.raises(UsageError, match=r"The one in YAML is lines\.yaml"):
        read_site(folder)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("{fwd: compute_s, sync: comm_s}", []),
        ("{forward: compute_s, sync: comm_s}", ["no line holds a phase forward, which its `columns` name", "do not name them: phases fwd"]),
        ("{fwd: compute_s}", ["left out, as its `columns` do not name them: phases sync"]),
    ],
)
def test_phases_that_columns_and_lines_do_not_share_are_told_once(columns: str, says: list[str], tmp_path: Path) -> None:
    text = b"".join(b"R0 it=%d fwd~3ms sync~1ms\n" % step for step in range(3))
    use_site(
        read_site(
            site(tmp_path, adapter(r"R(?P<rank>\d) it=(?P<step>\d)", f"  phases: '(?P<phase>[a-z]+)~(?P<ms>\\d+)ms'\n  columns: {columns}"))
        )
    )
    _, skips = rows_of(house_lines, source_of(tmp_path, text, "any.out"))
    assert len(skips) == bool(says)
    for part in says:
        assert part in skips[0].why
        assert "adapter ours of this site's lines.yaml" in skips[0].why


def test_text_that_no_adapter_of_the_site_fits_is_told_so(tmp_path: Path) -> None:
    from rca.guesses import guess

    assert "adapter of ten lines" in guess(UNKNOWN_LINE)
    use_site(read_site(site(tmp_path, adapter(r"it=(?P<step>\d{1,9}) (?P<step_ms>\d+)"))))
    assert "this site's adapter ours of lines.yaml fits no line" in guess(UNKNOWN_LINE)
    assert "; this site's adapter ours of lines.yaml fits no line" in guess(b"NodeName=gpu01 Stat=IDLE Reason=fan")
    assert "adapter" not in guess(bytes(range(256)) * 4)
