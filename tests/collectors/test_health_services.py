"""What clusters and health services report: Kubernetes, NVSentinel, gpud, HyperPod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import cloud_notices, gcm_health, gpud, kubernetes, nvsentinel
from collectors._attribution import of_words, of_xid
from collectors._health_message import said
from collectors._kube_nodes import is_bad
from rca.errors import EvidenceError
from rca.types import Skip

READERS = {"kubernetes": kubernetes, "nvsentinel": nvsentinel, "gpud": gpud, "cloud": cloud_notices, "gcm": gcm_health}
Row = dict[str, Any]


def read(reader: Any, text: str, folder: Path, name: str = "x") -> tuple[dict[str, list[Row]], list[Skip]]:
    """Rows by table, and what was skipped; the reader must claim the text."""
    assert reader.claims("x", text.encode()[:65536])
    return rows_of(reader, source_of(folder, text.encode(), name))


def fixture(name: str, folder: Path) -> dict[str, list[Row]]:
    text = (FIXTURES / name).read_text("utf-8")
    reader = next(reader for key, reader in READERS.items() if name.startswith(key) or (key == "kubernetes" and name.startswith("k8s")))
    rows, skips = read(reader, text, folder)
    assert not skips
    return rows


def shows(row: Mapping[str, Any], **wanted: Any) -> bool:
    got = {key: row[key].isoformat() if key.endswith("_at") and row[key] is not None else row[key] for key in wanted}
    assert got == wanted
    return True


def test_events_of_both_apis_say_where_when_how_often_and_whose(tmp_path: Path) -> None:
    rows = fixture("k8s_events_list.json", tmp_path)["node_events"]
    assert [(row["host"], row["kind"], row["attribution"], row["num_folded"]) for row in rows] == [
        ("host-a", "host_lost", "platform", 3),
        ("host-b", "xid", "platform", 4),
        ("host-c", "preemption", "planned", 1),
        ("host-d", "planned", "planned", 1),
        ("host-a", "none", "none", 1),
        ("host-e", "memory", "workload", 1),
    ]
    shows(rows[1], code="79", gpu="0000:b4:00", recommended_action="RESTART_BM", logged_at="2026-03-04T05:09:00+00:00",
          first_at="2026-03-04T05:07:00.123456+00:00")  # fmt: skip
    shows(rows[2], object="Pod/default/train-0")


def test_a_check_that_stands_in_the_type_is_the_reason(tmp_path: Path) -> None:
    event = {"kind": "Event", "apiVersion": "v1", "involvedObject": {"kind": "Node", "name": "host-a.example"}, "reason": "Warning",
             "type": "GpuPowerWatch", "message": "[DCGM_FR_POWER_UNREADABLE] power - RecommendedAction: NONE"}  # fmt: skip
    rows, _ = read(kubernetes, json.dumps(event), tmp_path)
    shows(
        rows["node_events"][0],
        host="host-a",
        reason="GpuPowerWatch",
        code="DCGM_FR_POWER_UNREADABLE",
        recommended_action="NONE",
        kind="gpu",
    )


def test_a_stream_tells_an_event_once_as_it_was_last(tmp_path: Path) -> None:
    rows = fixture("k8s_events_watch.json", tmp_path)["node_events"]
    assert len(rows) == 1
    shows(rows[0], num_folded=5, logged_at="2026-03-04T05:20:00+00:00", record="L25")
    event = json.loads((FIXTURES / "k8s_events_list.json").read_text())["items"][0]
    lines = [{"type": "ADDED", "object": event}, {"type": "DELETED", "object": event}]
    as_lines, _ = read(kubernetes, "".join(json.dumps(line) + "\n" for line in lines), tmp_path)
    assert [row["record"] for row in as_lines["node_events"]] == ["L1"]


def test_a_torn_list_gives_its_whole_entries(tmp_path: Path) -> None:
    text = (FIXTURES / "k8s_events_list.json").read_text()
    rows, skips = read(kubernetes, text[: text.index("Preempted by")], tmp_path)
    assert [row["host"] for row in rows["node_events"]] == ["host-a", "host-b"]
    assert skips


def test_nodes_have_a_state_each_and_what_is_wrong_an_event(tmp_path: Path) -> None:
    rows = fixture("k8s_nodes.json", tmp_path)
    states = {row["host"]: (row["base_state"], row["is_drain"], row["is_responding"], row["attribution"]) for row in rows["node_states"]}
    assert states == {
        "host-a": ("Ready", False, True, None),  # the taint of every GPU node says nothing
        "host-b": ("Ready", True, True, "platform"),  # cordoned because its GPU failed
        "host-c": ("Ready", True, True, "planned"),
        "host-d": ("Unknown", False, False, "platform"),
        "host-e": ("Ready", True, True, "platform"),
        "host-f": ("Ready", True, True, "planned"),
    }
    assert [(row["host"], row["source"], row["reason"]) for row in rows["node_events"]] == [
        ("host-b", "node_condition", "NvidiaXID79Error"),
        ("host-d", "node_condition", "NodeStatusUnknown"),
        ("host-e", "hyperpod", "XidHardwareFailure"),
    ]
    assert rows["node_events"][2]["logged_at"] is None  # a label has no history


def test_a_condition_by_itself_is_an_event_healthy_or_not(tmp_path: Path) -> None:
    for status, is_healthy, attribution in (("True", False, "platform"), ("False", True, "none")):
        condition = {"type": "GpuNvlinkWatch", "status": status, "reason": "r", "message": "m", "lastTransitionTime": "2026-03-04T05:06:07Z",
                     "lastHeartbeatTime": "2026-03-04T09:06:07Z"}  # fmt: skip
        rows, _ = read(kubernetes, json.dumps(condition), tmp_path)
        shows(rows["node_events"][0], is_healthy=is_healthy, attribution=attribution, logged_at="2026-03-04T05:06:07+00:00", host=None)


def test_conditions_are_good_by_their_names() -> None:
    bad = {"Ready": "False", "AcceleratedHardwareReady": "False", "NetworkNotReady": "True", "KernelDeadlock": "True", "GpuMemWatch": "True",
           "MemoryPressure": "True", "GPUHealthy": "False", "NetworkUnavailable": "True"}  # fmt: skip
    for name, status in bad.items():
        assert is_bad({"type": name, "status": status}), name
        assert not is_bad({"type": name, "status": "True" if status == "False" else "False"}), name
    assert is_bad({"type": "Ready", "status": "Unknown"})
    assert not is_bad({"type": "DiskPressure", "status": "Unknown"})  # said by the same silence as Ready


def test_hyperpods_own_record_of_faults_has_instants(tmp_path: Path) -> None:
    details = [{"timestamp": "2026-03-04T05:06:07Z", "type": "NvidiaErrorReboot", "reason": "XidHardwareFailure", "message": "Xid 79"}]
    about = {"sagemaker.amazonaws.com/fault-details": json.dumps(details)}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host-a", "annotations": about,
            "labels": {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReboot"}}, "status": {"conditions": []}}  # fmt: skip
    rows, _ = read(kubernetes, json.dumps(node), tmp_path)
    shows(rows["node_events"][0], source="hyperpod", code="79", logged_at="2026-03-04T05:06:07+00:00", attribution="platform")
    shows(rows["node_states"][0], is_drain=True, attribution="platform")


def test_pods_that_failed_say_why_and_those_that_run_say_nothing(tmp_path: Path) -> None:
    rows = fixture("k8s_pods_failed.json", tmp_path)["node_events"]
    assert [(row["host"], row["object"], row["reason"], row["attribution"]) for row in rows] == [
        ("host-a", "Pod/job/train-0/trainer", "OOMKilled", "workload"),
        ("host-b", "Pod/job/train-1", "Evicted", "unknown"),
        ("host-c", "Pod/job/train-2", "PreemptionByScheduler", "planned"),
    ]
    assert rows[0]["code"] == "137"


def test_jobs_tell_an_end_that_is_not_of_their_choice(tmp_path: Path) -> None:
    conditions = [
        {"type": "Running", "status": "False", "reason": "r", "message": "m", "lastTransitionTime": "2026-03-04T05:06:07Z"},
        {
            "type": "Evicted",
            "status": "True",
            "reason": "Preempted",
            "message": "to make room",
            "lastTransitionTime": "2026-03-04T05:06:07Z",
        },
    ]
    workload = {
        "apiVersion": "x/v1",
        "kind": "Workload",
        "metadata": {"name": "train", "namespace": "job"},
        "status": {"conditions": conditions},
    }
    rows = read(kubernetes, json.dumps(workload), tmp_path)[0]["node_events"]
    assert [(row["object"], row["reason"], row["attribution"], row["host"]) for row in rows] == [
        ("Workload/job/train", "Preempted", "planned", None)
    ]
    node_status = {
        "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "m", "lastHeartbeatTime": None}]
    }
    shows(read(kubernetes, json.dumps(node_status), tmp_path)[0]["node_events"][0], record="conditions/E0", kind="host_lost")


def test_tables_of_kubectl_give_counts_and_no_instants(tmp_path: Path) -> None:
    rows = fixture("k8s_events.txt", tmp_path)["node_events"]
    assert [(row["record"], row["host"], row["num_folded"], row["logged_at"]) for row in rows] == [
        ("L2", "host-a", 1, None), ("L3", "host-b", 12, None), ("L4", None, 1, None)]  # fmt: skip
    narrow = "NAMESPACE   LAST SEEN   TYPE      REASON        OBJECT        MESSAGE\n"
    narrow += "default     2m3s        Warning   NodeNotReady  node/host-a   Node is not ready\n"
    rows = read(kubernetes, narrow, tmp_path)[0]["node_events"]
    shows(rows[0], host="host-a", reason="NodeNotReady", kind="host_lost")
    states = fixture("k8s_nodes.txt", tmp_path)["node_states"]
    assert [(row["base_state"], row["is_drain"], row["attribution"]) for row in states] == [
        ("Ready", False, None), ("Ready", True, "planned"), ("NotReady", True, "platform")]  # fmt: skip


def test_a_described_node_gives_conditions_taints_and_events(tmp_path: Path) -> None:
    rows = fixture("k8s_describe_node.txt", tmp_path)
    assert [(row["record"], row["code"], row["num_folded"]) for row in rows["node_events"]] == [
        ("L16", "79", 1), ("L23", "DCGM_FR_CLOCK_THROTTLE_THERMAL", 3), ("L24", None, 1)]  # fmt: skip
    shows(rows["node_events"][0], logged_at="2026-03-04T05:06:07+00:00", gpu="0000:b4:00")  # printed in another zone
    shows(rows["node_states"][0], host="host-a", is_drain=True, attribution="platform")


def test_yaml_says_the_same_as_json(tmp_path: Path) -> None:
    import yaml

    listed = json.loads((FIXTURES / "k8s_events_list.json").read_text())
    as_yaml, skips = read(kubernetes, yaml.safe_dump(listed, default_flow_style=False), tmp_path)
    assert not skips
    assert as_yaml == read(kubernetes, json.dumps(listed), tmp_path)[0]


def test_nvsentinel_in_all_of_its_shapes(tmp_path: Path) -> None:
    rows = fixture("nvsentinel_events.jsonl", tmp_path)["node_events"]
    shows(rows[0], host="host-a", code="79", gpu="0000:b4:00", gpu_uuid="GPU-00000000", recommended_action="RESTART_BM", is_fatal=True,
          logged_at="2026-03-04T05:06:07.500000+00:00", reason="SysLogsXIDError", num_folded=1, attribution="platform")  # fmt: skip
    shows(rows[1], code="DCGM_FR_CLOCK_THROTTLE_THERMAL", gpu="3", recommended_action="NONE", is_fatal=False)
    shows(rows[2], is_healthy=True, attribution="none")
    shows(fixture("nvsentinel_store.json", tmp_path)["node_events"][0], code="79", gpu="3", logged_at="2026-03-04T05:06:07.500000+00:00")
    event = json.loads((FIXTURES / "nvsentinel_events.jsonl").read_text().splitlines()[0])
    bare, pretty = event["data"]["healthEvent"], json.dumps(event, indent=2)
    for text in (json.dumps([event]), pretty + "\n" + pretty, json.dumps({"version": 1, "events": [bare]}), json.dumps(bare)):
        found = read(nvsentinel, text, tmp_path)[0]["node_events"]
        assert {row["code"] for row in found} == {"79"}
        assert all(row["host"] == "host-a" for row in found)


def test_gpud_tells_xid_sub_code_and_actions(tmp_path: Path) -> None:
    event, reboot = fixture("gpud_events.json", tmp_path)["node_events"]
    shows(event, code="149", sub_code=2, gpu="0000:b4:00", recommended_action="HARDWARE_INSPECTION", is_fatal=True, reason="error_xid")
    shows(reboot, object="os", is_fatal=False)
    bad, good = fixture("gpud_states.json", tmp_path)["node_events"]
    shows(bad, code="79", gpu="0000:b4:00", is_healthy=False, recommended_action="REBOOT_SYSTEM, HARDWARE_INSPECTION")
    shows(good, is_healthy=True, attribution="none")
    rows, _ = read(gpud, (FIXTURES / "gpud_events.json").read_text(), tmp_path, name="gpu-a01.json")
    assert {row["host"] for row in rows["node_events"]} == {"gpu-a01"}


def test_checks_of_gcm_say_what_failed_and_what_passed(tmp_path: Path) -> None:
    rows = fixture("gcm_checks.jsonl", tmp_path)["node_events"]
    assert [(row["host"], row["reason"], row["is_healthy"], row["is_fatal"], row["kind"]) for row in rows] == [
        ("host-a", "check nvidia smi", True, False, "none"), ("host-a", "check syslogs xid", False, True, "xid"),
        ("host-b", "check iblink", False, False, "network")]  # fmt: skip
    shows(rows[1], code="79", gpu="0000:b4:00", logged_at="2026-03-04T05:06:09.500000+00:00", attribution="platform")


def test_notices_of_clouds_are_events_and_windows(tmp_path: Path) -> None:
    azure = fixture("cloud_azure_events.json", tmp_path)
    assert [(row["host"], row["kind"], row["attribution"]) for row in azure["node_events"]] == [
        ("host-a", "planned", "planned"), ("host-b", "planned", "planned"), ("host-c", "preemption", "planned")]  # fmt: skip
    shows(azure["planned_windows"][1], hosts=["host-b"], started_at="2026-03-04T05:06:07+00:00", ended_at="2026-03-04T05:16:07+00:00")
    assert len(azure["planned_windows"]) == 2  # what has no begin is no window
    aws = fixture("cloud_aws_status.json", tmp_path)
    assert [(row["host"], row["reason"], row["attribution"]) for row in aws["node_events"]] == [
        ("i-0a", "system-reboot", "planned"), ("i-0b", "SystemStatus impaired", "platform")]  # fmt: skip
    shows(fixture("cloud_aws_spot.json", tmp_path)["node_events"][0], host="i-0c", kind="preemption", logged_at="2026-03-04T05:06:07+00:00")
    own = [
        {
            "NotBefore": "21 Jan 2019 09:00:43 GMT",
            "Code": "instance-stop",
            "Description": "[Canceled] degraded hardware",
            "State": "canceled",
        }
    ]
    rows, _ = read(cloud_notices, json.dumps(own), tmp_path, name="gpu-a01.json")
    shows(rows["node_events"][0], host="gpu-a01", attribution="none")
    shows(rows["planned_windows"][0], is_cancelled=True, started_at="2019-01-21T09:00:43+00:00")
    gce = {"name": "host-a", "resourceStatus": {"upcomingMaintenance": {"type": "SCHEDULED", "maintenanceStatus": "PENDING",
           "windowStartTime": "2026-03-04T05:06:07.000-08:00", "windowEndTime": "2026-03-04T09:06:07.000-08:00"}}}  # fmt: skip
    shows(read(cloud_notices, json.dumps(gce), tmp_path)[0]["planned_windows"][0], hosts=["host-a"], started_at="2026-03-04T13:06:07+00:00")


@pytest.mark.parametrize(
    ("message", "codes", "xid", "gpu", "action"),
    [
        ("[A_1, B_2] text - RecommendedAction: RUN_DCGMEUD", ("A_1", "B_2"), None, None, "RUN_DCGMEUD"),
        ("ErrorCode:74 ErrorCode:45 PCI:0000:0B:00 link Recommended Action=CONTACT_SUPPORT;", ("74", "45"), None, "0000:0b:00", "CONTACT_SUPPORT"),
        ("[ERROR] GPU memory failure on GPU 3", (), None, "3", None),
        ("NVRM: Xid (PCI:0000:0b:00): 79, pid=7", (), 79, "0000:0b:00", None),
        ("XID 48 (Double Bit ECC) detected on GPU GPU-abcdef", (), 48, None, None),
        ("Expected to see 8 GPUs but found 7. FaultCode: NHC2009", ("NHC2009",), None, None, None),
        ("SXid 20034 on the switch", (), None, None, None),
        ("8 GPUs of 8 GB at 10:00:00", (), None, None, None),
    ],
)  # fmt: skip
def test_messages(message: str, codes: tuple[str, ...], xid: int | None, gpu: str | None, action: str | None) -> None:
    found = said(message)
    assert (found.codes, found.xid, found.gpu, found.action) == (codes, xid, gpu, action)


def test_whose_a_report_is() -> None:
    assert of_words("NodeNotSchedulable", "GPU has fallen off the bus").attribution == "platform"  # drained because it failed
    assert of_words("Preempted", "Preempted by pod x").attribution == "planned"
    assert of_words("TaintManagerEviction", "Marking for deletion Pod").attribution == "unknown"
    assert (of_xid(79).attribution, of_xid(13).attribution, of_xid(45).attribution, of_xid(99999).attribution) == (
        "platform", "workload", "unknown", "unknown")  # fmt: skip


def test_what_is_broken_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="nested"):
        read(kubernetes, '{"kind": "Event", "apiVersion": "v1", "a": ' + "[" * 100_000, tmp_path)
    assert read(kubernetes, "kind: Event\napiVersion: v1\nreason: [\n", tmp_path)[1]
