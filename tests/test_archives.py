"""Zips, and archives in archives: told by content, bounded, and what is torn or closed gives the rest and the reason."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rca import archives
from rca.sources import Inventory, inventory

LINES = [b"rank 0 began\n" * 400, b"rank 1 began\n" * 500, b"rank 2 began\n" * 600]


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED, streamed: bool = False) -> bytes:
    """The bytes of a zip; `streamed` as a program writes it that cannot go back: sizes stand behind each member."""
    out = io.BytesIO()
    target = Unseekable(out) if streamed else out
    with zipfile.ZipFile(target, "w", method) as archive:  # type: ignore[call-overload]
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


class Unseekable(io.RawIOBase):
    """Where nothing but writing on is possible."""

    def __init__(self, out: io.BytesIO) -> None:
        self.out = out

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self.out.write(data)


def tarred(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def look(tmp_path: Path, data: bytes, name: str = "bundle") -> Inventory:
    (tmp_path / name).write_bytes(data)
    return inventory(tmp_path / name, tmp_path / "spool" / name)


def contents(found: Inventory) -> dict[str, bytes]:
    return {s.path: s.read(1 << 30)[0] for s in found.sources}


def why(found: Inventory) -> dict[str, str]:
    return {u.path: u.why for u in found.unreadable}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_zip_is_a_folder_whatever_its_name(tmp_path: Path, method: int, streamed: bool) -> None:  # noqa: FBT001
    data = zipped(("host-a/r0.log", LINES[0]), ("host-b/", b""), ("host-b/r1.log", LINES[1]), method=method, streamed=streamed)
    assert contents(look(tmp_path, data, "x.log")) == {"x.log/host-a/r0.log": LINES[0], "x.log/host-b/r1.log": LINES[1]}


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_archives_in_archives_of_any_kind(tmp_path: Path, packer: str) -> None:
    pack = PACKERS[packer]
    inner = zipped(("r2.log", LINES[2]))
    middle = pack(tarred(("deep.zip", inner), ("r1.log", pack(LINES[1]))))
    found = look(tmp_path, pack(zipped(("middle", middle), ("r0.log", LINES[0]))))
    assert contents(found) == {"bundle/middle/deep.zip/r2.log": LINES[2], "bundle/middle/r1.log": LINES[1], "bundle/r0.log": LINES[0]}
    assert found.unreadable == ()


@pytest.mark.parametrize(
    "names",
    [
        ("archive/data.pkl", "archive/version", "archive/data/0"),
        ("model/.data/serialization_id", "model/x"),
        ("META-INF/MANIFEST.MF", "a.class"),
        ("pkg/__init__.py", "pkg-1.0.dist-info/METADATA"),
        ("[Content_Types].xml", "xl/workbook.xml"),
        ("arr_0.npy", "loss.npy"),
    ],
)
def test_a_zip_that_is_one_document_stays_a_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    data = zipped(*((name, LINES[0]) for name in names))
    assert [s.path for s in look(tmp_path, data).sources] == ["bundle"]
    assert [s.path for s in look(tmp_path, tarred(("state", data)), "t").sources] == ["t/state"]
    assert [s.path for s in look(tmp_path, gzip.compress(data), "g").sources] == ["g"]
    torn = look(tmp_path, data[: data.index(b"PK\x01\x02")], "torn")
    assert [s.path for s in torn.sources] == ["torn"] or names[0].startswith("pkg/"), "a wheel's mark stands last"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_torn_zip_gives_its_whole_members_and_the_reason(tmp_path: Path, method: int, streamed: bool) -> None:  # noqa: FBT001
    members = [(f"r{number}.log", data) for number, data in enumerate(LINES)]
    data = zipped(*members, method=method, streamed=streamed)
    last = data.rindex(b"PK\x03\x04")
    found = look(tmp_path, data[: last + 45])
    wanted = {} if streamed and method == zipfile.ZIP_STORED else {f"bundle/{name}": text for name, text in members[:2]}
    assert contents(found) == wanted
    assert "breaks off" in why(found)["bundle"]


def test_a_zip_of_many_gigabytes_by_its_own_word_is_read_by_what_it_holds(tmp_path: Path) -> None:
    """Zip64 fields, as streaming writers use them for small members too."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(LINES):
            with archive.open(f"r{number}.log", "w", force_zip64=True) as member:
                member.write(data)
    data = out.getvalue()
    assert list(contents(look(tmp_path, data)).values()) == LINES
    assert list(contents(look(tmp_path, data[: data.index(b"PK\x01\x02")], "torn")).values()) == LINES


def test_an_encrypted_member_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    data = bytearray(zipped(("secret.log", LINES[0]), ("open.log", LINES[1])))
    data[6] |= 1  # the flag in front of the member, and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    found = look(tmp_path, bytes(data))
    assert contents(found) == {"bundle/open.log": LINES[1]}
    assert "encrypted" in why(found)["bundle/secret.log"]


def test_a_member_with_a_wrong_sum_or_an_unknown_method_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    data = bytearray(zipped(("bad.log", LINES[0]), ("odd.log", LINES[1]), ("good.log", LINES[2]), method=zipfile.ZIP_STORED))
    data[60] ^= 0xFF
    directory = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    data[directory + 10] = 97
    found = look(tmp_path, bytes(data))
    assert contents(found) == {"bundle/good.log": LINES[2]}
    assert set(why(found)) == {"bundle/bad.log", "bundle/odd.log"}


def test_links_in_a_zip_are_no_files_and_names_are_no_paths(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    found = look(tmp_path, zipped((link, b"/etc/passwd"), ("../../r0.log", LINES[0]), ("/r1.log", LINES[1])))
    assert sorted(contents(found).values()) == sorted(LINES[:2])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "spool"]


def test_a_bomb_of_zips_in_zips_has_one_room_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca.archives.MAX_UNPACKED", (1 << 20, 10))
    one = zipped(("zeros", bytes(400_000)))
    data = zipped(*((f"{number}.zip", one) for number in range(50)))
    found = look(tmp_path, zipped(("r0.log", LINES[0]), ("all.zip", data)))
    assert found.sources[-1].path == "bundle/r0.log"
    assert any("far more than its size" in reason for reason in why(found).values())
    assert sum(p.stat().st_size for p in (tmp_path / "spool").rglob("*") if p.is_file()) <= 1 << 20


def test_too_many_members_or_archives_in_one_another_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca.archives.MAX_MEMBERS", 3)
    found = look(tmp_path, tarred(*((f"{n}.log", b"line\n") for n in range(6))))
    assert len(found.sources) == 3
    assert "more than 3 members" in why(found)["bundle"]
    data = LINES[0]
    for _ in range(archives.MAX_DEPTH + 2):
        data = zipped(("x", data))
    monkeypatch.undo()
    found = inventory(_written(tmp_path / "deep", data), tmp_path / "other")
    assert found.sources == ()
    assert [u.why for u in found.unreadable] == [f"more than {archives.MAX_DEPTH} archives in one another: not opened"]


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_tar_of_before_posix_is_told_by_its_sum(tmp_path: Path) -> None:
    data = bytearray(tarred(("r0.log", LINES[0])))
    data[257:265] = bytes(8)
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    assert contents(look(tmp_path, bytes(data))) == {"bundle/r0.log": LINES[0]}
    text = b"a" * 148 + b"1234567 " + b"b" * 400
    assert [s.path for s in look(tmp_path, text, "text").sources] == ["text"]
