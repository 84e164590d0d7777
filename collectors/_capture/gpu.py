"""The GPUs of this host by NVML: who they are, how they are, and whose they are. Without a driver nothing is known, and that is what is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["gpus"]


def gpus() -> tuple[list[dict[str, Any]] | None, str | None]:
    """The GPUs, or None and why they were not looked at. Values that a GPU does not give are null. Temperatures in degrees Celsius."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed (pip install 'firstfault[capture]'): GPUs were not looked at"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"no NVIDIA driver answers ({_words(error)}): GPUs were not looked at"

    def ask(question: Callable[..., Any], *about: Any) -> Any:
        try:
            value = question(*about)
        except pynvml.NVMLError:
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def gpu(index: int) -> dict[str, Any]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        bus = ask(pynvml.nvmlDeviceGetPciInfo, handle)
        remapped = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
        running = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        throttle = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        use = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)

        def errors(kind: int, since: int) -> Any:
            return ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)

        corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return {
            "index": index,
            "uuid": ask(pynvml.nvmlDeviceGetUUID, handle),
            "serial": ask(pynvml.nvmlDeviceGetSerial, handle),
            "name": ask(pynvml.nvmlDeviceGetName, handle),
            "vbios": ask(pynvml.nvmlDeviceGetVbiosVersion, handle),
            "pci_bus": _text(bus.busId) if bus else None,
            "ecc_mode": ask(pynvml.nvmlDeviceGetEccMode, handle),
            "ecc_corrected_total": errors(corrected, pynvml.NVML_AGGREGATE_ECC),
            "ecc_uncorrected_total": errors(uncorrected, pynvml.NVML_AGGREGATE_ECC),
            "ecc_uncorrected_since_reset": errors(uncorrected, pynvml.NVML_VOLATILE_ECC),
            "remapped_rows": dict(zip(("corrected", "uncorrected", "is_pending", "has_failed"), remapped, strict=False))
            if remapped
            else None,
            "clock_limit_reasons": ask(throttle, handle),
            "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_mw": ask(pynvml.nvmlDeviceGetPowerUsage, handle),
            "sm_clock_mhz": ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "gpu_use_percent": use.gpu if use else None,
            "memory_used_bytes": memory.used if memory else None,
            "processes": None if running is None else [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in running],
        }

    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(gpu(index))
            except pynvml.NVMLError as error:  # a GPU that is lost from the bus has no handle
                found.append({"index": index, "problem": _words(error)})
        driver = ask(pynvml.nvmlSystemGetDriverVersion)
    except pynvml.NVMLError as error:
        return None, f"NVML does not answer ({_words(error)}): GPUs were not looked at"
    finally:
        pynvml.nvmlShutdown()
    return [one | {"driver": driver} for one in found], None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
