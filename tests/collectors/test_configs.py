"""Versions, settings and addresses: every form gives the same component and value, hosts come from content or names, secrets never come."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _sources import FIXTURES, rows_of

from collectors import address_map, bundle, host_configs, version_lines
from collectors._capture.withheld import is_plain, withheld
from rca.types import Source

DRIVER = [("node-a", "nvidia_driver", "580.82.07"), ("node-b", "nvidia_driver", "570.86.15")]
PIP = "numpy==1.26.4\nnvidia-nccl-cu12==2.21.5\ntorch==2.5.1+cu124\n"
SMI = "index, name, driver_version\n0, NVIDIA H100 80GB HBM3, 580.82.07\n"


def read(collector: ModuleType, folder: Path, data: str, name: str = "x.txt") -> list[dict[str, Any]]:
    file = folder / "file"
    file.write_text(data)
    source = Source(name, file, len(data))
    assert collector.claims(name, source.head), data[:100]
    tables, skips = rows_of(collector, source)
    assert skips == []
    return [row for rows in tables.values() for row in rows]


def told(rows: list[dict[str, Any]]) -> list[tuple[str | None, str, str]]:
    return sorted((row["host"], row["component"], row["value"]) for row in rows)


TABLES_OF_HOSTS = {
    "by host": json.dumps({"node-a": {"driver": "580.82.07"}, "node-b": {"driver": "570.86.15"}}),
    "list": json.dumps([{"host": "node-a", "driver_version": "580.82.07"}, {"host": "Node-B.cluster", "NVIDIA driver": "570.86.15"}]),
    "long": json.dumps(
        [{"node": "node-a", "component": "driver", "value": "580.82.07"}, {"node": "node-b", "component": "driver", "value": "570.86.15"}]
    ),
    "nested": json.dumps({"hosts": {"node-a": {"versions": {"driver": "580.82.07"}}, "node-b": {"versions": {"driver": "570.86.15"}}}}),
    "lines": '{"host": "node-a", "driver": "580.82.07"}\n{"host": "node-b", "driver": "570.86.15"}\n',
    "wide CSV": "hostname,driver\nnode-a,580.82.07\nnode-b,570.86.15\n",
    "long CSV": "host;component;value\nnode-a;driver;580.82.07\nnode-b;driver;570.86.15\n",
    "matrix CSV": "component,node-a,node-b\ndriver,580.82.07,570.86.15\n",
    "a driver in many words": json.dumps(
        {"node-a": {"driver": "NVIDIA UNIX x86_64 Kernel Module  580.82.07  Thu"}, "node-b": {"driver": "570.86.15"}}
    ),
}


@pytest.mark.parametrize("form", TABLES_OF_HOSTS)
def test_every_table_of_hosts_gives_the_same(form: str, tmp_path: Path) -> None:
    assert told(read(host_configs, tmp_path, TABLES_OF_HOSTS[form])) == DRIVER


@pytest.mark.parametrize(
    "name",
    ["node-a.pip_freeze.txt", "pip-freeze-node-a.txt", "node-a/pip_freeze.txt", "versions/node-a/freeze.txt", "node-a.cluster.pip.list"],
)
def test_what_one_host_prints_is_of_the_host_of_its_name(name: str, tmp_path: Path) -> None:
    assert told(read(host_configs, tmp_path, PIP, name))[-1] == ("node-a", "pip:torch", "2.5.1+cu124")


def test_a_name_that_says_nothing_leaves_the_host_open(tmp_path: Path) -> None:
    for name in ("pip_freeze.txt", "out/pip.txt", "3.txt"):
        assert {row["host"] for row in read(host_configs, tmp_path, PIP, name)} == {None}


def test_tools_of_one_host(tmp_path: Path) -> None:
    forms = {
        SMI: ("nvidia_driver", "580.82.07"),
        "node-a: index, driver_version\nnode-a: 0, 580.82.07\n": ("nvidia_driver", "580.82.07"),
        "+----+\n| NVIDIA-SMI 580.82.07    Driver Version: 580.82.07    CUDA Version: 13.0  |\n": ("cuda_driver", "13.0"),
        "Package    Version\n---------- -----\ntorch      2.5.1\nnumpy      1.26.4\n": ("pip:torch", "2.5.1"),
        "A=1\nB=2\nexport NCCL_IB_HCA='mlx5_0'\n": ("env:NCCL_IB_HCA", "mlx5_0"),
        (FIXTURES / "configs_collect.txt").read_text(): ("python", "3.11.9"),
        (FIXTURES / "configs_smi_q.txt").read_text(): ("vbios", "96.00.89.00.01"),
    }
    for text, fact in forms.items():
        assert ("node-a", *fact) in told(read(host_configs, tmp_path, text, "node-a.txt")), text


def test_of_variables_only_known_families_are_kept_and_no_secret(tmp_path: Path) -> None:
    text = "HOME=/home/user\nPATH=/bin\nNCCL_DEBUG=INFO\nNCCL_AUTH_TOKEN_FILE=x\nTORCH_TOKEN=abc\nCUDA_X=https://user:pw@example.org/\nWANDB_API_KEY=1\n"
    assert told(read(host_configs, tmp_path, text)) == [
        (None, "env:CUDA_X", withheld("env:CUDA_X", "https://user:pw@example.org/")),
        (None, "env:NCCL_DEBUG", "INFO"),
    ]
    entry = {
        "node-a": {
            "driver": "580.82.07",
            "api_key": "abc",
            "packages": {"tokenizers": "0.19"},
            "env": {"NCCL_DEBUG": "INFO", "HOME": "/home/user", "NCCL_TOKEN": "abc"},
        }
    }
    values = {value for _, _, value in told(read(host_configs, tmp_path, json.dumps(entry)))}
    assert values == {"580.82.07", "INFO", "0.19"}


SETTINGS = (
    *(
        "eth0",
        "^docker0,lo",
        "=mlx5_0:1,mlx5_10:1",
        "expandable_segments:True,max_split_size_mb:128",
        "0x00000000ffffffffffffffff",
        "9.0+PTX;8.0",
    ),
    *("GPU-00000000-0c3d-4a6f-9a8b-001122334455", "/opt/lib/x86_64-linux-gnu/libnccl-net.so", "+distributed,inductor", "node[001-128]"),
    *(
        "198.51.100.1:29500",
        "[2001:db8::1]:29500",
        "tcp://198.51.100.1:1234",
        "/tmp/%h-%p.log",
        "/scratch/checkpoints/run_2024/torch_cache",
    ),
)
SECRETS = (
    *(
        "/s3?X-Amz-Signature=abc",
        "/x?token=q",
        "Bearer abc",
        '{"password":"x"}',
        "ghp_abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "a;password=x",
    ),
    *("https://u:p@example.org/x", "https://example.org/y?a=b", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "eyJhbGciOiJI.eyJzdWIi.abc"),
    *("5f4dcc3b5aa765d61d8327deb882cf99", "dGhpc2lzYXNlY3JldHRva2VudmFsdWU=", "redis://:pw@example.org:6379", "sgKJdkfjGHdkfjTYqwPOzxMN"),
)


def test_values_that_may_be_secrets_are_told_by_their_shape_and_still_differ(tmp_path: Path) -> None:
    assert [value for value in SETTINGS if not is_plain(value)] == []
    assert [value for value in SECRETS if is_plain(value)] == []
    text = "NCCL_DEBUG=INFO\n" + "".join(f"CUDA_X{n}={value}\n" for n, value in enumerate(SECRETS))
    document = {"schema_version": "rca.processes/1", "host": "node-a", "processes": [{"role": "main", "environment": {}}]}
    document["processes"][0]["environment"] = {f"NCCL_X{n}": value for n, value in enumerate(SECRETS)}  # type: ignore[index]
    nccl = "".join(f"node-a:1:2 [0] NCCL INFO NCCL_X{n} set by environment to {value}\n" for n, value in enumerate(SECRETS))
    table = json.dumps({"node-a": {"env": {f"CUDA_X{n}": value for n, value in enumerate(SECRETS)}, "driver": "580.82.07"}})
    for reader, data in ((host_configs, text), (bundle, json.dumps(document)), (version_lines, nccl), (host_configs, table)):
        rows = [row for row in read(reader, tmp_path, data) if "_X" in row["component"]]
        assert len(rows) == len(SECRETS), reader
        assert all(row["value"].startswith("withheld:") for row in rows), reader
        assert len({row["value"] for row in rows}) == len(SECRETS), reader
    one, two = (read(host_configs, tmp_path, f"NCCL_DEBUG=INFO\nNCCL_A=1\nNCCL_NET=Bearer {word}\n")[-1]["value"] for word in ("a", "b"))
    assert one != two


def test_logs_maps_and_measurements_are_left_to_others() -> None:
    for text in (
        '{"rank": 0, "host": "node-a", "driver": "580.82.07"}',
        '{"message": "driver loaded", "host": "node-a", "driver": "x"}\n{"message": "y", "host": "node-a"}\n',
        "rank,host,driver\n0,node-a,580\n",
        "step,loss\n1,2.0\n",
        "torch==2.5.1\n",
        "x = 1\ny = 2\nz = 3\n",
    ):
        assert not host_configs.claims("versions.json", text.encode()), text


KERNEL = "NVRM: loading NVIDIA UNIX {}  580.82.07  Thu Jul 24 00:00:00 UTC 2025"
STARTS = {
    "[    9.48] " + KERNEL.format("x86_64 Kernel Module"): (None, None, "nvidia_driver", "580.82.07"),
    "Mar  2 08:10:02 node-a kernel: [    9.51] " + KERNEL.format("Open Kernel Module for x86_64"): ("node-a", None, "nvidia_driver", "580.82.07"),
    "node-a:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4": ("node-a", None, "nccl", "2.21.5"),
    "[rank3]: node-a:1:2 [0] NCCL INFO cudaDriverVersion 12040": ("node-a", 3, "cuda_driver", "12.4"),
    "[rank3]: PyTorch version: 2.5.1+cu124": (None, 3, "torch", "2.5.1+cu124"),
    "node-a:1:2 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.": ("node-a", None, "env:NCCL_IB_GID_INDEX", "3"),
    '{"host": "node-a", "message": "NCCL version 2.21.5+cuda12.4"}': ("node-a", None, "nccl", "2.21.5"),
    '{"_HOSTNAME": "node-a", "_TRANSPORT": "kernel", "MESSAGE": "' + KERNEL.format("x86_64 Kernel Module") + '"}': ("node-a", None, "nvidia_driver", "580.82.07"),
}  # fmt: skip


@pytest.mark.parametrize("line", STARTS)
def test_what_programs_print_as_they_start(line: str, tmp_path: Path) -> None:
    rows = read(version_lines, tmp_path, f"a line before\n{line}\n")
    assert STARTS[line] in [(row["host"], row["rank"], row["component"], row["value"]) for row in rows]
    assert {row["record"] for row in rows} == {"L2"}


def test_of_two_starts_in_one_file_the_last_counts(tmp_path: Path) -> None:
    lines = [f"node-a:1:2 [0] NCCL INFO NCCL version {version}" for version in ("2.20.5", "2.21.5")]
    (row,) = read(version_lines, tmp_path, "\n".join(lines))
    assert (row["record"], row["value"]) == ("L2", "2.21.5")


def test_addresses_that_nccl_uses(tmp_path: Path) -> None:
    text = "node-a:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB bond0:192.0.2.4<0>\nnode-a:1:1 [0] NCCL INFO Bootstrap: Using eth0:fe80::1%eth0<0>\n"
    rows = [row for row in read(version_lines, tmp_path, text) if "address" in row]
    assert [(row["host"], row["interface"], row["address"]) for row in rows] == [
        ("node-a", "bond0", "192.0.2.4"),
        ("node-a", "eth0", "fe80::1"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 localhost\n192.0.2.4 node-a node-a.cluster\n192.0.2.5\tnode-b # rack\n",
        '{"node-a": "192.0.2.4", "node-b": "192.0.2.5"}',
        '{"192.0.2.4": "node-a", "192.0.2.5": "node-b"}',
        '[{"rank": 0, "host": "node-a", "ip": "192.0.2.4"}, {"rank": 1, "host": "node-b", "ip": "192.0.2.5"}]',
        '{"node-a": {"ip": "192.0.2.4", "addresses": ["127.0.0.1"]}, "node-b": {"ip": "192.0.2.5"}}',
        "rank,host,ip\n0,node-a,192.0.2.4\n1,node-b,192.0.2.5\n",
    ],
)
def test_every_map_of_addresses_gives_the_same(text: str, tmp_path: Path) -> None:
    assert [(row["host"], row["address"]) for row in read(address_map, tmp_path, text)] == [
        ("node-a", "192.0.2.4"),
        ("node-b", "192.0.2.5"),
    ]


def test_a_capture_tells_its_host(tmp_path: Path) -> None:
    rows = read(bundle, tmp_path, (FIXTURES / "capture_host.json").read_text())
    assert ("host-a", "nvidia_driver", "580.82.07") in told([row for row in rows if "component" in row])
    assert [(row["host"], row["address"]) for row in rows if "address" in row] == [("host-a", "192.0.2.2")]
    process = {"pid": 1, "role": "main", "rank": 0, "environment": {"NCCL_DEBUG": "INFO", "RANK": "0"}}
    document = {"schema_version": "rca.processes/1", "host": "host-a", "processes": [process, {**process, "rank": 1}]}
    rows = read(bundle, tmp_path, json.dumps(document))
    assert told([row for row in rows if "component" in row]) == [("host-a", "env:NCCL_DEBUG", "INFO")]


# ruff: noqa: E501 - lines as they are written


def test_the_host_in_a_name_is_whole(tmp_path: Path) -> None:
    names = {
        "gpu-a01.pip-freeze.txt": "gpu-a01", "gpu-b2-nvidia-smi.csv": "gpu-b2", "env-gpu-a01.txt": "gpu-a01", "gpu-a01/pip.txt": "gpu-a01",
        "gpu07.freeze.txt": "gpu07", "dgx-03_pip_freeze.txt": "dgx-03", "nvidia-smi-gpu-a01.txt": "gpu-a01", "gpu-info-node1.txt": "node1",
        "20260302-gpu-a01.pip.txt": "gpu-a01", "ip-10-0-3-7.pip.txt": "ip-10-0-3-7", "a01-gpu.txt": "a01", "gpus.txt": None, "gpu-3.txt": None,
        "raw-data/pip.txt": None, "attempt-2/pip.txt": None, "rank_3.pip.txt": None, "backup-2/env.txt": None,
    }  # fmt: skip
    assert {name: {row["host"] for row in read(host_configs, tmp_path, PIP, name)} for name in names} == {n: {h} for n, h in names.items()}
