"""What `rca capture` notes of a host's network and of a process' program, from files as the kernel writes them and from a real process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors._capture.find import Member
from collectors._capture.host import versions
from collectors._capture.network import adapters, addresses
from collectors._capture.proc import read_process

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.0.2.2
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
"""
SIX = """20010db8000000000000000000000002 04 40 00 80     eth0
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_own_addresses_without_those_that_every_host_has(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(TRIE)
    (tmp_path / "if_inet6").write_text(SIX)
    assert addresses(tmp_path) == ["192.0.2.2", "2001:db8::2"]
    assert addresses(tmp_path / "none") == []


def test_firmware_of_adapters(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0").mkdir()
    (tmp_path / "mlx5_0" / "fw_ver").write_text("28.39.1002\n")
    (tmp_path / "empty").mkdir()
    assert adapters(tmp_path) == {"mlx5_0": {"fw_ver": "28.39.1002"}}
    assert adapters(tmp_path / "none") == {}


@pytest.mark.skipif(not Path("/proc/self/exe").exists(), reason="needs /proc")
def test_script_configuration_and_image_of_a_process(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "config.yaml"
    script.write_text("print('ready', flush=True); input()\n")
    config.write_text("lr: 1\n")
    words = [sys.executable, "train.py", f"--config={config}", "--missing", "gone.json", "--fifo", str(tmp_path / "pipe.json")]
    os.mkfifo(tmp_path / "pipe.json")
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"CONTAINER_IMAGE": "train:7"}
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = read_process(process.pid)
        assert found is not None
        (program,) = versions([Member(found, "main", 0, 0)])["programs"]
        process.kill()
    assert program["files"] == {name.name: hashlib.sha256(name.read_bytes()).hexdigest()[:16] for name in (script, config)}
    assert program["image"]["container_image"] == "train:7"
    assert program["ranks"] == [0]
