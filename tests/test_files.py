"""Files that the tool keeps: whole or not there at all, with a message that names the file; pipes, devices and links are not read."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rca.errors import UsageError
from rca.files import MAX_BYTES, is_plain, plain_bytes, put, put_folders

BIG = "x" * 4_000_000


@contextmanager
def little_room() -> Iterator[None]:
    """No file may grow beyond 1 MB: to whoever writes it is as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_half(tmp_path: Path) -> None:
    target = put(tmp_path / "deep" / "record.json", "old\n")
    with little_room(), pytest.raises(UsageError, match=r"record\.json: cannot be written \(File too large\)\. Close again\."):
        put(target, BIG, else_="Close again.")
    assert [(file.name, file.read_text()) for file in target.parent.iterdir()] == [("record.json", "old\n")]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"file/record\.json: cannot be written"):
        put(tmp_path / "file" / "record.json", "new")


def test_folders_come_all_at_once_or_not_at_all(tmp_path: Path) -> None:
    files = [("a/1.json", "1"), ("b/2.json", BIG)]
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "new" / "er", tmp_path / "there"):
        with little_room(), pytest.raises(UsageError, match=rf"{out.name}/b/2\.json: cannot be written"):
            put_folders(out, files)
    assert not (tmp_path / "new" / "er").exists()
    assert list((tmp_path / "there").iterdir()) == []
    put_folders(tmp_path / "there", files)
    assert sorted(file.name for file in (tmp_path / "there").rglob("*.json")) == ["1.json", "2.json"]
    (tmp_path / "half" / "b" / "x").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be written"):
        put_folders(tmp_path / "half", files)
    assert [path.name for path in (tmp_path / "half").iterdir()] == ["b"]


def test_a_run_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    def files() -> Iterator[tuple[str, str]]:
        yield "a/1.json", "1"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_folders(tmp_path / "out", files())
    assert not (tmp_path / "out").exists()


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(b"text")
    assert (is_plain(good), plain_bytes(good)) == (True, b"text")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for name in ("pipe", "link", "zero", "folder", "large", "none"):
        assert not is_plain(tmp_path / name)
        with pytest.raises(OSError, match=r".+"):
            plain_bytes(tmp_path / name)
