"""What hosts, their kernels and their GPUs say, and what is installed on them."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import BOOL, FLOAT, FROM, INSTANT, INT, RANK, TEXT, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "kernel_events",
        "event of the kernel, a driver or a controller (bursts folded)",
        Column("host", TEXT, "host that logged it, where the line or the file's name says so"),
        Column("boot_id", TEXT, "boot of that host, where given"),
        Column("logged_at", INSTANT, "when; null unless the file gives date, year and zone"),
        Column("logged_at_local", TEXT, "what the file gives instead: YYYY-MM-DDThh:mm:ss, MM-DDThh:mm:ss or hh:mm:ss"),
        Column("uptime_s", FLOAT, "since boot, s, where printed"),
        Column(
            "kind", TEXT, "xid sxid bus_loss aer nic ib oom mce edac panic hung_task lockup segfault storage_nvme thermal power other ..."
        ),
        Column("code", INT, "Xid or SXid number"),
        Column("gpu", TEXT, "PCI address dddd:bb:dd of the GPU (for sxid: of the switch); a slot, not a device"),
        Column("device", TEXT, "netdev, disk, mount, CPU, library, PCI address ... of other kinds"),
        Column("pid", INT, "process concerned (for oom: the one killed)"),
        Column("process", TEXT, "name of that process, cut as the kernel cuts it"),
        Column("severity", TEXT, "corrected, uncorrected, fatal, nonfatal (as NVLink and NVSwitch lines say); null = not said"),
        Column(
            "unit",
            TEXT,
            "unit of the chip named in the line; several = folded lines name more than one; oom: memcg or host; hung_task: the module it waits in",
        ),
        Column("link", INT, "NVLink number, -1 = the whole device"),
        Column("caused_by", INT, "Xid that the line itself names as its cause"),
        Column("recovery", TEXT, "what the line says is needed: reset, reboot, drain, drain_reset, imex, none"),
        Column("sub_code", INT, "sub-code of an NVLink line (Xid 144-150): bits 20-25 of its first word"),
        Column(
            "remote_effect",
            TEXT,
            "what the GPU at the link's other end will show, by the vendor's sheet: none, packet_loss ...; null = not known",
        ),
        Column("driver_version", TEXT, "version of the NVIDIA driver that the same file names for that host and boot"),
        Column("gpu_uuid", TEXT, "UUID that the driver gave for that slot in that boot: a slot is no device"),
        Column("gpu_serial", TEXT, "board serial number, likewise"),
        Column("num_folded", INT, "raw lines folded into this row, 1 = not folded"),
        Column("is_rate_limited", BOOL, "true = the kernel dropped lines: num_folded is a lower bound"),
        Column("message", TEXT, "the first line without its prefix"),
        lead=FROM,
    ),
    table(
        "host_logs",
        "kernel log x host that it names, also one without any event: says what was looked at",
        Column("host", TEXT, "host, where the line or the file's name says so; null = the file does not say"),
        Column("boot_id", TEXT, "boot of that host, where given"),
        Column("first_at", INSTANT, "earliest line; null unless the file gives date, year and zone"),
        Column("last_at", INSTANT, "latest line"),
        Column("first_at_local", TEXT, "what the file gives instead, as in kernel_events"),
        Column("last_at_local", TEXT, "the latest such stamp"),
        Column("first_uptime_s", FLOAT, "smallest stamp since boot, s, where printed"),
        Column("last_uptime_s", FLOAT, "largest stamp since boot, s"),
        Column("num_lines", INT, "lines of the whole file"),
        lead=FROM,
    ),
    table(
        "hosts",
        "host, per file that describes it",
        Column("host", TEXT, "host, lower-case first label"),
        Column("boot_at", INSTANT, "when it booted: places kernel lines that count from there"),
        Column("zone_offset_s", FLOAT, "local time minus UTC, s, where given"),
        lead=FROM,
    ),
    table(
        "clock_anchors",
        "place in a kernel log where a second clock stands beside the first, or where a host boots",
        Column("host", TEXT, "host, where the line or the file's name says so"),
        Column("boot_id", TEXT, "boot of that host, where given"),
        Column(
            "kind",
            TEXT,
            "epoch: the line holds seconds since 1970 beside its stamp; pair: wall clock and time since boot in one line; boot: a kernel starts; "
            "set: the wall clock was set; month: the first line seen of another month, or the last line, where stamps lack the year",
        ),
        Column("told_at", INSTANT, "the instant that the line tells; null where it tells none"),
        Column("told_at_local", TEXT, "its stamp without zone, as in kernel_events"),
        Column("uptime_s", FLOAT, "since boot, s, where printed"),
        lead=FROM,
    ),
    table(
        "host_addresses",
        "network address of a host, per place that says so",
        Column("host", TEXT, "host, lower-case first label; null where only the rank is told"),
        RANK,
        Column("address", TEXT, "IP address as written, without port and interface; or another name that a transport gives the host"),
        Column("interface", TEXT, "interface that it belongs to, where told"),
        lead=FROM,
    ),
    table(
        "configs",
        "component of a host (or of a rank's process) and its version, setting or hash",
        Column("host", TEXT, "host, lower-case first label; null where only the rank is told"),
        RANK,
        Column(
            "component", TEXT, "nvidia_driver, kernel, nccl, torch, vbios, image:NAME, env:NAME, pip:NAME, firmware:DEVICE, hash:FILE, ..."
        ),
        Column("value", TEXT, "version, setting or hash, as the source writes it"),
        Column(
            "source",
            TEXT,
            "capture, kernel_log, nccl_log, nccl_mismatch (it refused two ranks), torch_log, nvidia_smi, pip, env, collect_env, kubernetes, table",
        ),
        Column("observed_at", INSTANT, "when it was so; null where the source gives no date, year and zone"),
        lead=FROM,
    ),
    table(
        "gpu_samples",
        "printed sample of a metric of a GPU, a link or a collective",
        RANK,
        Column("name", TEXT, "metric as exported"),
        Column("host", TEXT, "host, where a label says so"),
        Column("gpu", TEXT, "PCI address dddd:bb:dd, where a label says so"),
        Column("gpu_index", INT, "number of the GPU on its host"),
        Column("gpu_uuid", TEXT, "UUID of the GPU"),
        Column("link", INT, "number of the link or port, where a label says so"),
        Column("scrape", INT, "1, 2, ...: which sample of the same series within the file, of a text which scrape of its host"),
        Column("sampled_at", INSTANT, "when; null where the file does not say (a text exposition has no time of its own)"),
        Column("value", FLOAT, "as exported, in the unit of the metric; null where not finite"),
        Column("code", INT, "Xid that the value or a label names"),
        Column("gpu_temp_c", FLOAT, "the value, where it is the temperature of a GPU, degrees C"),
        Column("exec_s", FLOAT, "the value, where it is the time of a collective, s"),
        Column("window_s", FLOAT, "window that a label says the value is counted over, s"),
        Column("comm", TEXT, "communicator, where a label says so"),
        Column("op", TEXT, "collective, where a label says so"),
        Column("labels", TEXT, "all labels as JSON"),
        lead=FROM,
    ),
    table(
        "host_samples",
        "sample of host metrics",
        Column("host", TEXT, "host, where the file says so"),
        Column("logged_at", INSTANT, "when; null unless the file gives date, year and zone"),
        Column("logged_at_local", TEXT, "what the file gives instead: YYYY-MM-DDThh:mm:ss, MM-DDThh:mm:ss or hh:mm:ss, fraction kept"),
        Column("metrics", TEXT, "name -> number, as JSON"),
        lead=FROM,
    ),
)
