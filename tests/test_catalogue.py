"""Catalogues of codes and lines: every authority for itself, our rule beside them, and a site's own rows over the shipped ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from _house import ROOT, call
from _rack import HGX, Rack

from apps.session import open_session
from rca import catalogues
from rca.catalogues import FILES, by_code, read_site, rows, use_site
from rca.causes import ACTIONS, CAUSES
from rca.errors import UsageError
from rca.policies import opinions, rule_of

CONTAINED = "pid={pid}, name=python, Contained: FB DED (0x2). RST: No, D-RST: No"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No site but the test's own, before and after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RCA_SITE", raising=False)
    use_site(None)
    yield
    use_site(None)


def site(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, "utf-8")
    return folder


def codes(text: str) -> set[int]:
    """`8 11 39-41` as numbers."""
    parts = (part.partition("-") for part in text.split())
    return {number for first, _, last in parts for number in range(int(first), int(last or first) + 1)}


# What ships


@pytest.mark.parametrize("name", sorted(FILES))
def test_shipped_rows_have_keys_of_their_own_and_what_a_new_row_would_need(name: str) -> None:
    about = FILES[name]
    keys = [tuple(row[column] for column in about.key) for row in rows(name)]
    assert len(set(keys)) == len(keys) > 0
    silences = {"log_patterns": {"signature"}}.get(name, set())  # an empty one says that such a line is nothing
    assert [row for row in rows(name) for column in (*about.key, *about.needs) if column not in silences and not row[column]] == []


def test_every_code_of_the_sheets_is_there_with_a_rule() -> None:
    assert (len(by_code("xid")), set(by_code("xid")), len(by_code("sxid"))) == (176, set(range(1, 177)), 399)
    policies = {row["policy"]: row for row in rows("policies")}
    for kind in ("xid", "sxid"):
        for row in by_code(kind).values():
            assert row["policy"] in policies
            assert row["role"] in catalogues.ROLES
            assert row["cause"] in {*CAUSES, ""}
    assert {row["action"] for row in policies.values()} <= {*ACTIONS, ""}
    assert {row["stance"] for row in policies.values()} == set(catalogues.STANCES)


@pytest.mark.parametrize(
    ("column", "word", "listed"),
    [
        ("nvidia_immediate", "restart_app", "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139"),
        ("nvidia_immediate", "reset_gpu", "46 62 64 95 109 110 119 120 136 140 143 155 156 158"),
        ("nvidia_immediate", "restart_bm", "79"),
        ("nvidia_immediate", "restart_vm", "151"),
        ("nvidia_immediate", "check_mechanicals", "54"),
        ("nvidia_immediate", "check_uvm", "159"),
        ("k8s_device_plugin", "ignored", "13 31 43 45 68 109"),
        ("gke_monitor", "critical", "48 63 64 79 119 120 123 140"),
        ("eks_node_condition", "condition", "46 48 54 62 63 64 74 79 95 109 110 119 120 136 140 142 143 151 155 156 158"),
        ("azure_nhc", "fail", "48 56 57 58 62 63 64 65 68 69 73 74 79 80 81 92 119 120"),
        ("meta_gcm", "non_critical", "13 31 43 45 63 68 92 109"),
        ("deepseek_fire_flyer", "reboot", "44 61 65"),
    ],
)
def test_each_authority_says_what_it_says(column: str, word: str, listed: str) -> None:
    assert {code for code, row in by_code("xid").items() if row[column] == word} == codes(listed)


def test_no_word_of_an_authority_is_without_a_meaning() -> None:
    for kind in ("xid", "sxid"):
        for code, row in by_code(kind).items():
            assert [o for o in opinions(row) if not o.means or not o.who] == [], code


def test_where_they_differ_all_are_shown_and_none_is_merged() -> None:
    rule = rule_of("xid", 109)
    assert rule is not None
    assert {(o.column, o.value) for o in rule.opinions} >= {("nvidia_immediate", "reset_gpu"), ("k8s_device_plugin", "ignored")}
    assert rule.differ
    lost = rule_of("xid", 79)
    assert lost is not None
    assert (lost.differ, lost.action) == (False, "replace")


def test_a_number_that_nobody_describes_is_unknown_and_not_ignored() -> None:
    assert rule_of("xid", 9999) is None
    assert {by_code("xid")[code]["policy"] for code in (1, 29, 138)} == {"unknown"}
    assert {row["policy"] for row in by_code("sxid").values() if row["severity"] == "undocumented"} == {"unknown"}


# A site's own rows


def test_site_changes_cells_keeps_empty_ones_and_adds_rows(tmp_path: Path) -> None:
    shipped = dict(by_code("xid")[94])
    use_site(
        read_site(
            site(
                tmp_path / "site",
                xid="code,policy,why,aws_healthcheck,name,role\n094,replace_host,,-,,\n# a word\n900,watch,,,our own number,info\n",
                log_patterns="pattern,signature,word\nOURS: \\d+ is gone,process_signal,ours\nFailed to send MESSAGE_TASK_EXIT,process_signal,\n",
            )
        )
    )
    changed = by_code("xid")[94]
    assert {column for column in shipped if shipped[column] != changed[column]} == {"policy", "aws_healthcheck"}
    assert (changed["policy"], changed["aws_healthcheck"], by_code("xid")[900]["name"]) == ("replace_host", "", "our own number")
    assert rows("log_patterns")[0]["word"] == "ours"
    chosen = catalogues.site()
    assert chosen is not None
    assert chosen.changes == {"xid": (1, 1), "log_patterns": (1, 1)}
    use_site(None)
    assert dict(by_code("xid")[94]) == shipped


WRONG = {  # name of the file, text, what the message says beside the file
    "no such file": ("xids", "code\n79\n", "no catalogue has that name"),
    "no key": ("xid", "policy\nwatch\n", "no column code"),
    "a column too many": ("xid", "code,colour\n79,red\n", "'colour'"),
    "a column twice": ("xid", "code,policy,policy\n79,watch,watch\n", "twice"),
    "a cell too many": ("xid", "code,policy\n79,watch,now\n", "line 2: 3 cells"),
    "no number": ("xid", "code,policy\nseventy-nine,watch\n", "line 2"),
    "a row twice": ("xid", "code,policy\n79,watch\n079,ignore\n", "line 3: 79 stands there twice"),
    "an empty key": ("xid", "code,policy\n,watch\n", "may not be empty"),
    "no such policy": ("xid", "code,policy\n79,pray\n", "policy 'pray' is none of"),
    "no such role": ("xid", "code,role\n79,boss\n", "role 'boss'"),
    "no such cause": ("sxid", "code,cause\n20034,gremlins\n", "cause 'gremlins'"),
    "a new row that is too thin": ("xid", "code,policy\n901,watch\n", "a new one needs name"),
    "an open quote": ("xid", 'code,why\n79,"open\n', "no CSV"),
    "a broken pattern": ("log_patterns", "pattern,signature,word\n(open,process_signal,open\n", "no regular expression"),
    "no number of seconds": ("xid_edges", "from,to,scope,window_s,kind,source\nxid:1,xid:2,same_gpu,soon,causes,us\n", "window_s 'soon'"),
    "an emptied window": ("xid_edges", "from,to,scope,window_s\nxid:48,xid:63,same_gpu,-\n", "window_s may not be emptied"),
    "an edge from nothing": ("xid_edges", "from,to,scope,window_s,kind,source\nbanana,xid:2,same_gpu,5,causes,us\n", "from 'banana'"),
    "an edge to no number": ("xid_edges", "from,to,scope,window_s,kind,source\nxid:1,xid:4x8,same_gpu,5,causes,us\n", "to 'xid:4x8'"),
    "no such kind of line": (
        "kernel_lines",
        "pattern,kind,markers\nacme: lost,acme,acme\n",
        "kind 'acme' is none of aer, edac, hung_task, ib,",
    ),
    "no such signature": ("log_patterns", "pattern,signature,word\nlost,we_lost,lost\n", "signature 'we_lost' is none of"),
    "no such scope": ("xid_edges", "from,to,scope,window_s,kind,source\nxid:1,xid:2,same_rack,5,causes,us\n", "scope 'same_rack'"),
}


def test_wrong_file_of_a_site_is_told_with_place_and_what_to_do(tmp_path: Path) -> None:
    for number, (what, (name, text, told)) in enumerate(WRONG.items()):
        folder = site(tmp_path / str(number), **{name: text})
        with pytest.raises(UsageError) as error:
            read_site(folder)
        assert told in str(error.value), what
        assert f"{name}.csv" in str(error.value), what
        done = call("catalogue", "xid", "79", "--site", folder)
        assert (done.code, done.out) == (2, ""), what
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "xid.csv").write_bytes(b"code,why\n79,\xff\xfe\n")
    (tmp_path / "folder" / "xid.csv").mkdir(parents=True)
    for folder, told in (("bytes", "byte 12 is no UTF-8"), ("folder", "no plain file"), ("nowhere", "no such folder")):
        with pytest.raises(UsageError, match=told):
            read_site(tmp_path / folder)


def test_other_files_in_the_folder_are_no_rules(tmp_path: Path) -> None:
    folder = site(tmp_path, xid="code,policy\n79,replace_host\n")
    (folder / "README.md").write_text("ours")
    assert read_site(folder).changes == {"xid": (1, 0)}


def test_case_is_built_again_when_the_site_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = Rack(num_hosts=1, gpus=HGX).xid(5, 0.0, 94, CONTAINED).write(tmp_path / "evidence")
    folder = site(tmp_path / "site", xid="code,policy\n94,watch\n")

    def is_built() -> bool:
        with open_session(str(evidence), None) as session:
            session.case().close()
            return session.was_built

    assert (is_built(), is_built()) == (True, False)
    monkeypatch.setenv("RCA_SITE", str(folder))
    assert (is_built(), is_built()) == (True, False)
    site(folder, xid="code,policy\n94,ignore\n")
    assert (is_built(), is_built()) == (True, False)
    monkeypatch.delenv("RCA_SITE")
    assert is_built()


def test_policy_decides_the_advice_and_the_answer_says_whose_it_was(tmp_path: Path) -> None:
    evidence = Rack(num_hosts=1, gpus=HGX).xid(5, 0.0, 94, CONTAINED).write(tmp_path / "evidence")
    plain = call("diagnose", evidence, "--json").doc
    assert (plain["verdict"]["cause"], plain["advice"]["action"], plain["advice"]["evict"]["hosts"]) == ("gpu_memory_fault", "retry", [])
    assert "site" not in plain
    folder = site(tmp_path / "site", xid="code,policy\n94,replace_host\n")
    ours = call("diagnose", evidence, "--site", folder, "--json").doc
    assert (ours["advice"]["action"], ours["advice"]["evict"]["hosts"]) == ("replace", ["host-00"])
    assert ours["site"]["files"] == {"xid.csv": {"changed": 1, "added": 0}}
    (record,) = [f for f in ours["findings"] if f["analysis"] == "fatal_xid"]
    assert record["numbers"]["policy"] == "replace_host"
    assert record["numbers"]["authorities"]["nvidia_immediate"] == "restart_app"
    text = call("diagnose", evidence, "--site", folder).out
    assert f"Rules of this site counted: xid.csv (1 changed, 0 new) of {folder}." in " ".join(text.split())
    assert "this site's rule for Xid 94 is replace host" in " ".join(text.split())
    assert "authorities differ on Xid 94: leave it in use: NVIDIA (restart_app)" in " ".join(text.split())


def test_policy_of_a_site_counts_at_any_record_of_the_chain_and_alone(tmp_path: Path) -> None:
    folder = site(tmp_path / "site", xid="code,policy,why\n63,replace_host,ours\n")
    remapped = "pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000000000001) marked for remapping, reset gpu to activate."
    double = "pid='<unknown>', name=<unknown>, DBE (double bit error) has been detected on GPU in the framebuffer"
    chain = Rack(num_hosts=1, gpus=HGX).xid(5, 0.0, 48, double).xid(5, 0.2, 63, remapped).xid(5, 2.0, 45, "pid=1, Ch 00000008")
    alone = Rack(num_hosts=1, gpus=HGX).xid(5, 0.0, 63, remapped).xid(5, 2.0, 45, "pid=1, Ch 00000008")
    for name, rack in (("chain", chain), ("alone", alone)):
        evidence = rack.write(tmp_path / name)
        plain = call("diagnose", evidence, "--json").doc
        assert "replace_host" not in {f["numbers"].get("policy") for f in plain["findings"]}, name
        text = " ".join(call("diagnose", evidence, "--site", folder).out.split())
        assert "this site's rule for Xid 63 is replace host" in text, name
        assert "Xid 63" in text, name


def test_what_a_site_knows_of_a_number_counts(tmp_path: Path) -> None:
    folder = site(tmp_path / "site", xid="code,name,role,cause,policy\n901,our own number,root,gpu_fault,replace_host\n")
    evidence = Rack(num_hosts=1, gpus=HGX).xid(5, 0.0, 901, "something of ours").write(tmp_path / "evidence")
    before, after = call("diagnose", evidence, "--json").doc, call("diagnose", evidence, "--site", folder, "--json").doc
    assert before["advice"]["evict"]["hosts"] == []
    assert (after["verdict"]["cause"], after["advice"]["evict"]["hosts"]) == ("gpu_fault", ["host-00"])
    assert "Xid 901 (this site's: our own number)" in str(after["findings"])


def test_the_page_on_site_files_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs/site.md").read_text()
    for name, text in re.findall(r"```csv\n# (\w+)\.csv\n(.*?)```", page, re.DOTALL):
        site(tmp_path, **{name: text})
    assert {name: new for name, (_, new) in read_site(tmp_path).changes.items()} == {
        "kernel_lines": 1, "log_patterns": 2, "policies": 1, "signatures": 1, "xid": 0,
    }  # fmt: skip
    assert [name for name in FILES if f"`{name}.csv`" not in page] == []
    told = {word for words in re.findall(r"`([\w ]+)`", page) for word in words.split()}
    assert {row["policy"] for row in rows("policies")} | {row["kind"] for row in rows("kernel_lines")} <= told


def test_what_a_site_knows_of_lines_counts_when_they_are_read(tmp_path: Path) -> None:
    folder = site(
        tmp_path / "site",
        kernel_lines="pattern,kind,markers,severity\nfrobnicator (?P<device>\\w+) has burnt,storage,frobnicator,\n",
        log_patterns="pattern,signature,word\nourlib: rank (?P<rank>\\d+) left us,process_signal,ourlib\n",
    )
    evidence = (
        Rack(num_hosts=1, gpus=HGX)
        .say("host-00", 1.0, "frobnicator disk7 has burnt")
        .write(tmp_path / "evidence", logs_of={0: [(-3.0, "INFO [rank0] step 1 loss 2.0"), (2.0, "ERROR [rank0] ourlib: rank 6 left us")]})
    )

    def told() -> tuple[list[str], list[str]]:
        tables = call("inspect", evidence, "--json", "--table", "kernel_events", "--table", "log_events").doc["tables"]
        return [row["device"] for row in tables["kernel_events"]], [row["signature"] for row in tables["log_events"] if row["rank"] == 6]

    assert told() == ([], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RCA_SITE", str(folder))
        assert told() == (["disk7"], ["process_signal"])
    assert told() == ([], [])


# The verb


def test_verb_takes_a_number_alone_and_any_case() -> None:
    plain = call("catalogue", "xid", "149").out
    assert plain.startswith("Xid 149")
    for words in (("149",), ("XID", "149"), ("Xid", "149")):
        assert call("catalogue", *words).out == plain
    assert call("catalogue", "SXid", "20034").out.startswith("SXid 20034")
    wrong = call("catalogue", "acme")
    assert (wrong.code, "xid and sxid" in wrong.err) == (2, True)


def test_verb_shows_one_code_with_all_authorities_and_edges() -> None:
    done = call("catalogue", "xid", "79")
    assert done.code == 0
    for told in ("restart_bm", "Azure node health check", "Our rule: reboot_host", "sxid:20034", "12 s later", "aer ("):
        assert told in done.out
    document = call("catalogue", "xid", "79", "--json").doc
    (row,) = document["codes"]
    assert (document["schema_version"], row["class"], row["rule"]["policy"], document["site"]) == (
        "rca.catalogue/1",
        "root",
        "reboot_host",
        None,
    )
    assert {"xid:45", "xid:154", "sxid:20034", "xid:145"} <= {edge["of"] for edge in row["leads_to"]}
    assert all(edge["source"] for edge in row["leads_to"] + row["follows_from"])


def test_verb_lists_all_and_says_what_is_unknown() -> None:
    assert len(call("catalogue", "sxid").out.splitlines()) == 400
    assert len(call("catalogue", "xid", "--json").doc["codes"]) == 176
    unknown = call("catalogue", "xid", "9999")
    assert (unknown.code, "class is unknown" in unknown.out) == (0, True)
    assert call("catalogue", "xid", "9999", "--json").doc["codes"][0]["class"] == "unknown"
    assert call("catalogue", "yid").code == 2
