"""Checkpoints as torch, Megatron, DeepSpeed, Hugging Face and people write them: what is read of each, and that nothing in one is run."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import checkpoint_index, checkpoint_manifest, checkpoint_metadata, checkpoint_payload
from collectors._checkpoint_parts import folder_of, part_of
from collectors._payload_ends import LEGACY
from rca.errors import EvidenceError
from rca.step_names import step_said
from rca.types import Source

READERS = (checkpoint_index, checkpoint_manifest, checkpoint_metadata, checkpoint_payload)


def read(reader: ModuleType, folder: Path, data: bytes, path: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """(row of `checkpoints`, rows of `checkpoint_files`) of one file at a path."""
    file = folder / "file"
    file.write_bytes(data)
    source = Source(path, file, len(data))
    assert [one for one in READERS if one.claims("x", source.head)] == [reader]
    tables, _ = rows_of(reader, source)
    return next(iter(tables["checkpoints"]), None), tables["checkpoint_files"]


def safetensors(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def torch_saved(folder: Path, value: object, *, is_zip: bool = True) -> bytes:
    import torch

    file = folder / "saved.pt"
    torch.save(value, file, _use_new_zipfile_serialization=is_zip)
    return file.read_bytes()


def test_what_torch_saved_is_described_without_torch(tmp_path: Path) -> None:
    """A description of two ranks (gloo): each shard must be as large as the last piece in it says, and these end exactly there."""
    told, files = read(checkpoint_metadata, tmp_path, (FIXTURES / "checkpoint_dcp.metadata").read_bytes(), "run/step-20/.metadata")
    assert told is not None
    assert (told["checkpoint"], told["step"], told["is_marked"], told["num_files"]) == ("run/step-20", 20, True, 2)
    assert told["parts"] == ["model", "optimizer", "scheduler", "rng", "sampler", "other"]
    assert told["lacks"] == []
    assert {f["file"]: (f["least_bytes"], f["state_rank"]) for f in files} == {
        "run/step-20/__0_0.distcp": (7193, 0),
        "run/step-20/__1_0.distcp": (17925, 1),
    }


def test_a_description_made_now_fits_the_shards_made_with_it(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=tmp_path / "iter_0000007")
    told, files = read(checkpoint_metadata, tmp_path, (tmp_path / "iter_0000007" / ".metadata").read_bytes(), "iter_0000007/.metadata")
    assert told is not None
    assert (told["step"], told["parts"], told["lacks"]) == (7, ["model", "optimizer"], ["scheduler", "rng", "sampler"])
    assert told["saved_to"] == str(tmp_path / "iter_0000007")
    assert [f["least_bytes"] for f in files] == [(tmp_path / "iter_0000007" / "__0_0.distcp").stat().st_size]


def test_a_description_that_was_not_renamed_yet_marks_nothing(tmp_path: Path) -> None:
    told, _ = read(checkpoint_metadata, tmp_path, (FIXTURES / "checkpoint_dcp.metadata").read_bytes(), "step-20/.metadata.tmp")
    assert told is not None
    assert told["is_marked"] is False


def test_a_torn_description_is_no_finished_save(tmp_path: Path) -> None:
    data = (FIXTURES / "checkpoint_dcp.metadata").read_bytes()
    for end in (500, len(data) - 40):
        with pytest.raises(EvidenceError, match="breaks off"):
            list(checkpoint_metadata.read(source_of(tmp_path, data[:end])))


def test_a_pickle_that_would_run_something_is_refused_by_name(tmp_path: Path) -> None:
    """In a description, in the pickle of a zip and in the older form: nothing runs, and what it asked for is named."""

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    trap = pickle.dumps(Trap(), 2)
    description = (
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}(X\x13\x00\x00\x00state_dict_metadata" + trap[2:-1] + b"ub."
    )
    zipped = tmp_path / "trap.zip"
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("archive/data.pkl", trap)
    old = LEGACY + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + trap
    for reader, data in (
        (checkpoint_metadata, description),
        (checkpoint_payload, zipped.read_bytes()),
        (checkpoint_payload, old),
    ):
        try:
            _, skips = rows_of(reader, source_of(tmp_path, data))
            said = " ".join(skip.why for skip in skips)
        except EvidenceError as error:
            said = error.why
        assert "asks to import posix.mkdir" in said
    assert not (tmp_path / "ran").exists()


def test_shards_tell_their_parts_and_where_a_run_stood(tmp_path: Path) -> None:
    import argparse

    import torch

    weights = {"layers.0.weight": torch.ones(2), "layers.0.bias": torch.ones(2)}
    rng = torch.get_rng_state()
    megatron = {
        "iteration": 1234, "checkpoint_version": 3.0, "model": weights, "optimizer": {"x": 1}, "opt_param_scheduler": {"num_steps": 4},
        "rng_state": [{"random_rng_state": rng}], "args": argparse.Namespace(world_size=8, consumed_train_samples=4096),
    }  # fmt: skip
    deepspeed = {"module": weights, "lr_scheduler": {}, "global_steps": 30, "dp_world_size": 4, "mp_world_size": 1, "ds_version": "0.16.2"}
    lightning = {
        "epoch": 1, "global_step": 77, "pytorch-lightning_version": "2.5.0", "state_dict": weights,
        "optimizer_states": [{"state": {}}], "lr_schedulers": [{}], "loops": {"fit_loop": {}},
    }  # fmt: skip
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for value, path, told, parts in (
        (
            megatron,
            "i/iter_0001234/mp_rank_00/model_optim_rng.pt",
            ("megatron", "i/iter_0001234", 1234, 8),
            "model optimizer scheduler rng sampler",
        ),
        (deepspeed, "global_step30/mp_rank_00_model_states.pt", ("deepspeed", "global_step30", 30, 4), "model scheduler"),
        (lightning, "ckpt/last.ckpt", ("lightning", "ckpt", 77, None), "model optimizer scheduler sampler"),
        (optimizer.state_dict(), "checkpoint-500/optimizer.pt", None, "optimizer"),
        (torch.optim.lr_scheduler.StepLR(optimizer, 3).state_dict(), "checkpoint-500/scheduler.pt", None, "scheduler"),
        ({"python": (3,), "numpy": None, "cpu": rng}, "checkpoint-500/rng_state_3.pth", None, "rng"),
        (weights, "checkpoint-500/pytorch_model.bin", None, "model"),
    ):
        for is_zip in (True, False):
            row, (file,) = read(checkpoint_payload, tmp_path, torch_saved(tmp_path, value, is_zip=is_zip), path)
            assert (row and (row["format"], row["checkpoint"], row["step"], row["world_size"])) == told, path
            assert [part for part in file["parts"] if part != "other"] == parts.split(), path
            assert file["problem"] is None
            assert file["state_rank"] == (3 if "rng_state_3" in path else None)


def test_a_shard_says_itself_that_it_is_torn(tmp_path: Path) -> None:
    whole = (FIXTURES / "checkpoint_optimizer.pt").read_bytes()
    weights = (FIXTURES / "checkpoint_weights.safetensors").read_bytes()
    for data, problem in (
        (whole, None),
        (whole[:-100], "torn: its table of contents, which is written last, is missing"),
        (whole[: len(whole) // 2] + bytes(5000), "torn: it ends in zeros"),
        (whole[:700], "torn: its table of contents"),
        (weights, None),
        (weights[:-1], "torn: it ends 1 bytes before its last tensor does"),
        (weights + b"x", "1 bytes more than its header tells"),
        (weights[:100], "torn: its header alone would end"),
        (struct.pack("<Q", 1 << 63) + weights[8:], "damaged: its header would be 9,223,372,036,854,775,808 bytes long"),
        (safetensors({"a": {"data_offsets": [5, 1]}}), "damaged: its header does not say where"),
        (safetensors({"a": {"data_offsets": [0, 1 << 70]}}), "damaged: its header does not say where"),
        (struct.pack("<Q", 50_000) + b'{"__metadata__":' * 3125, "damaged: its header is no JSON"),
    ):
        _, (file,) = read(checkpoint_payload, tmp_path, data, "c/shard")
        assert (file["problem"] or "").startswith(problem or ""), problem
        assert (file["problem"] is None) == (problem is None), problem


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "bomb.pt"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    tables, skips = rows_of(checkpoint_payload, Source("bomb.pt", file, file.stat().st_size))
    assert "compressed, which torch never does" in skips[0].why
    assert tables["checkpoint_files"][0]["problem"] is None


def test_small_files_beside_the_shards(tmp_path: Path) -> None:
    told, files = read(
        checkpoint_index, tmp_path, (FIXTURES / "checkpoint_index.json").read_bytes(), "checkpoint-500/model.safetensors.index.json"
    )
    assert told is not None
    assert (told["step"], told["size_bytes"], told["is_marked"], told["parts"]) == (500, 3000, None, ["model"])
    assert [f["file"] for f in files] == [f"checkpoint-500/model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    told, files = read(checkpoint_index, tmp_path, (FIXTURES / "checkpoint_megatron.json").read_bytes(), "iter_0000100/metadata.json")
    assert told is not None
    assert (told["format"], told["step"], told["is_marked"], told["state_version"], files) == (
        "megatron_dist",
        100,
        True,
        "torch_dist/1",
        [],
    )
    for tag in (b"global_step500", b"global_step500\n", b"global_step500_universal"):
        told, _ = read(checkpoint_index, tmp_path, tag, "run/latest")
        assert told is not None
        assert (told["checkpoint"], told["step"], told["is_marked"]) == (f"run/{tag.decode().strip()}", 500, True)
    for none in (b"500", b"release", b"global_step", b"global_step5 and more", b"see global_step500"):
        assert not any(reader.claims("latest", none) for reader in READERS), none


@pytest.mark.parametrize(
    ("document", "marked", "shards"),
    [
        (
            {"step": 5, "status": "committed", "shards": [{"path": "model.pt", "size": 3, "checksum": "sha256:" + "a" * 64}]},
            True,
            [("c/model.pt", 3, "sha256")],
        ),
        ({"global_step": 5, "completed": False, "files": {"model.pt": {"bytes": 3, "md5": "b" * 32}}}, False, [("c/model.pt", 3, "md5")]),
        ({"iteration": 5, "files": {"optim/0.pt": "c" * 64}, "model": "x"}, None, [("c/optim/0.pt", None, "sha256")]),
        (
            {"step": 5, "state": "writing", "parts": {"model": {"shards": [{"name": "m.bin", "num_bytes": 7}]}}},
            False,
            [("c/m.bin", 7, None)],
        ),
        ({"step": 5, "checkpoint": "a", "files": [{"key": "../up.pt", "length": 1, "crc32": 255}]}, None, [("../up.pt", 1, "crc32")]),
    ],
)
def test_manifests_of_teams_own_making(tmp_path: Path, document: Any, marked: object, shards: list[Any]) -> None:
    told, files = read(checkpoint_manifest, tmp_path, json.dumps(document).encode(), "c/manifest.json")
    assert told is not None
    assert (told["step"], told["is_marked"]) == (5, marked)
    assert [(f["file"], f["exact_bytes"], f["checksum_kind"]) for f in files] == shards


def test_the_manifest_of_docs_is_read_whole(tmp_path: Path) -> None:
    told, files = read(checkpoint_manifest, tmp_path, (FIXTURES / "checkpoint_own.json").read_bytes(), "step_500/manifest.json")
    assert told is not None
    assert (told["step"], told["is_marked"], told["world_size"], told["state_version"], told["lacks"]) == (500, True, 2, "3", [])
    assert told["saved_at"].isoformat() == "2026-11-29T20:15:00+00:00"
    assert told["saved_to"] == "s3://bucket/run-7/step_500"
    assert [(f["state_rank"], f["parts"]) for f in files] == [(0, ["model"]), (1, ["model"]), (0, ["optimizer"])]


def test_sizes_whose_sum_fits_no_column_are_not_told(tmp_path: Path) -> None:
    document = {"step": 5, "model": "x", "files": {"a.pt": (1 << 63) - 1, "b.pt": 20}}
    told, files = read(checkpoint_manifest, tmp_path, json.dumps(document).encode(), "c/manifest.json")
    assert told is not None
    assert (told["size_bytes"], [f["exact_bytes"] for f in files]) == (None, [(1 << 63) - 1, 20])


def test_other_json_is_no_manifest() -> None:
    for document in (
        {"schema_version": "rca.bundle/1", "step": 1, "model": "x", "files": [{"path": "a", "sha256": "a" * 64}]},
        {"files": [{"path": "a", "sha256": "a" * 64}], "tool": "scan of models"},
        {"step": 3, "loss": 2.5, "model": "x"},
        {"step": 3, "model": "x", "files": ["a", "b"]},
    ):
        assert not any(reader.claims("manifest.json", json.dumps(document).encode()) for reader in READERS), document


def test_names_of_parts_and_steps() -> None:
    for name, part in (
        ("opt_param_scheduler", "scheduler"), ("lr_scheduler.last_epoch", "scheduler"), ("rng_state/shard_0_1", "rng"),
        ("cuda_rng_state", "rng"), ("train_dataloader", "sampler"), ("data_sampler", "sampler"), ("optimizer.state.exp_avg.x", "optimizer"),
        ("model.optimizer_head.weight", "model"), ("module", "model"), ("decoder.layers.mlp.weight", "model"), ("string", None), ("loss", None),
    ):  # fmt: skip
        assert part_of(name) == part, name
    for path, step in (
        ("a/iter_0001234", 1234), ("checkpoint-500", 500), ("global_step10", 10), ("run-7/step=30", 30), ("run-7", None), ("b/epoch_3", None),
    ):  # fmt: skip
        assert step_said(path) == step, path
    assert folder_of("a/iter_0000002/mp_rank_00_001/x.pt") == "a/iter_0000002"
    assert folder_of("x.pt") == "."
