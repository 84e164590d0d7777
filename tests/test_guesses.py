"""What is said of files that nothing reads: the format where it is known, else the nearest one that is read and what it would need."""

from __future__ import annotations

from pathlib import Path

import pytest

from rca import plugins
from rca.catalogues import rows
from rca.guesses import guess


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"PK\x03\x04\x14\x00", "a zip archive: "),
        (b"LPKSHHRH\x00\x00", "journalctl --file"),
        (b"SQLite format 3\x00\x10", "an SQLite database"),
        (b":W&B\xe1\xbe\x00", "Weights & Biases"),
        (b"\x80\x04\x95\x00segments\x94device_traces\x94", "recognised, not read"),
        (b"\x80\x04\x95abc", "a pickle without the keys of a recorder dump"),
        (b"# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n#  size  algbw  busbw\n", "output of nccl-tests"),
        (b"<system version='1'>\n<cpu numaid='0'>", "a topology of NCCL"),
        (b"# HELP node_cpu_seconds_total\n", "metrics of another exporter"),
        (b"NodeName=gpu01 Stat=IDLE Reason=fan", "nearest states of nodes (slurm_nodes; it holds 'nodename=', 'reason=')"),
        (b'{"alpha": 1, "beta": {"gamma": 2}}', "with alpha, beta: lines of your own are read with an adapter"),
        (b"shopping list\neggs\n", "text of a kind that no collector reads yet"),
        (bytes(range(256)) * 4, "binary data"),
    ],
)
def test_a_file_is_told_for_what_it_is(head: bytes, says: str) -> None:
    assert says in guess(head)


def test_whatever_the_bytes_are_the_guess_is_one_line() -> None:
    for head in (b"", b"\xff" * 100, b'{"a\\nb": ' + b"[" * 5000, '{"\ud800": 1}'.encode("utf-8", "surrogatepass"), b"x" * 70_000):
        assert guess(head)


def test_every_known_format_names_a_reader_that_is_there() -> None:
    known = plugins.names("collectors")
    for row in rows("known_formats"):
        assert not row["reader"] or row["reader"] in known, row
        assert row["begins"] or row["telltales"]
        assert row["says"]
        assert int(row["least"]) <= len(row["telltales"].split("|"))


def test_what_is_not_read_has_its_reason_where_people_look(tmp_path: Path) -> None:
    from _house import call

    (tmp_path / "links.txt").write_text("Port GUID: 0\nLinkDownedCounter:....0\nSymbolErrorCounter:....3\n")
    out = call("inspect", tmp_path).out
    assert "links.txt: no collector recognises it; an InfiniBand link report" in " ".join(out.split())


def test_every_table_that_a_question_needs_has_a_name_and_something_to_bring() -> None:
    from apps.tour import COVERS

    needed = {table for name in plugins.names("rca.analyses") for table in plugins.load("rca.analyses", name).NEEDS}
    assert needed <= COVERS.keys()
