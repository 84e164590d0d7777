"""What an exporter of GPU metrics shows of each host: clock, power, temperature, activity, errors, scraped twice a minute.

Names and labels as dcgm-exporter writes them, with the instant of the scrape. Busy GPUs of a sound job differ by some percent in clock and power and
by ten degrees in temperature; one that is throttled runs at a lower clock while it is as busy as the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rca.drills.simulated._kernel_gpu import drawn_address

__all__ = ["MAX_HOSTS", "gpu_metrics"]

S: Final = 1_000_000_000
MAX_HOSTS: Final = 32  # whose metrics are kept
EVERY_S: Final = 30
CLOCK_MHZ, POWER_W, TEMP_C = 1980.0, 640.0, 61.0  # of a busy H100
GAUGES: Final = (
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
)
COUNTERS: Final = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")


def gpu_metrics(
    hosts: Sequence[str],
    *,
    gpus: Callable[[str], int],
    first_at: int,
    last_at: int,
    seed: int,
    throttled: Mapping[tuple[str, int], tuple[int, float]],
) -> dict[str, bytes]:
    """Path -> text of each host. `throttled`: (host, GPU) -> since when (ns), and by what factor its clock is lower."""
    files = {}
    for host in hosts[:MAX_HOSTS]:
        rng = random.Random(f"metrics:{seed}:{host}")
        usual = [
            (rng.gauss(0, 12), rng.gauss(0, 14), rng.gauss(0, 3), rng.getrandbits(48), rng.choice((0, 0, 0, 3, 11)))
            for _ in range(gpus(host))
        ]
        lines = []
        for name in (*GAUGES, *COUNTERS):
            lines += [f"# HELP {name} as the exporter has it.", f"# TYPE {name} {'gauge' if name in GAUGES else 'counter'}"]
            for number, (clock, power, temp, uuid, replays) in enumerate(usual):
                since, factor = throttled.get((host, number), (last_at + 1, 1.0))
                labels = f'gpu="{number}",UUID="GPU-{uuid:012x}",pci_bus_id="0000{drawn_address(number)}.0",device="nvidia{number}",Hostname="{host}"'
                for at in range(first_at, last_at, EVERY_S * S):
                    by = factor if at >= since else 1.0
                    value = {
                        "DCGM_FI_DEV_SM_CLOCK": (CLOCK_MHZ + clock) / by + rng.gauss(0, 6),
                        "DCGM_FI_DEV_POWER_USAGE": (POWER_W + power) / by**1.5 + rng.gauss(0, 12),
                        "DCGM_FI_DEV_GPU_TEMP": TEMP_C + temp + (24 if by > 1 else 0) + rng.gauss(0, 1),
                        "DCGM_FI_DEV_GPU_UTIL": 100 - rng.choice((0, 0, 0, 1, 2)),
                        "DCGM_FI_PROF_SM_ACTIVE": 0.82 + rng.gauss(0, 0.02),
                        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": replays,
                    }.get(name, 0)
                    lines.append(f"{name}{{{labels}}} {round(float(value), 3):g} {at // 1_000_000}")
        files[f"metrics/{host}.prom"] = ("\n".join(lines) + "\n").encode()
    return files
