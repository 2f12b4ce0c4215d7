"""Where a report was made: machine, versions, settings. Without them two reports cannot be compared."""

from __future__ import annotations

import os
import platform as system
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pie_mlx import __version__
from pie_mlx.bench.energy import why_unreadable
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.errors import Fact

_PACKAGES = ("mlx", "mlx-lm", "numpy", "tokenizers")


def machine_facts(setting: BenchSetting) -> dict[str, Fact]:
    """Describe the machine as it is now, what else it does included."""
    found, facts = setting.platform, setting.engine.facts
    return {
        "system": f"{found.system} {system.release()}",
        "machine": found.machine,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "device": facts.device,
        "dtype": facts.dtype,
        "blas": None if found.blas is None else Path(found.blas).name,
        "memory_bytes": found.memory.total_bytes,
        "available_bytes": found.memory.available_bytes,
        "read_bytes_per_s": setting.bandwidth,
        "load": load_average(),
        "thermal": thermal(),
        "energy": why_unreadable() or "joules a token, by powermetrics",
    }


def version_facts() -> dict[str, Fact]:
    """Return the versions of everything that decides a figure; None is not installed."""
    facts: dict[str, Fact] = {"pie-mlx": __version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    return facts


def setting_facts(setting: BenchSetting) -> dict[str, Fact]:
    """Return how it was measured."""
    settings, options, facts = setting.engine.settings, setting.options, setting.engine.facts
    return {
        "model": facts.model,
        "fingerprint": facts.fingerprint,
        "weight_bytes": setting.weight_bytes,
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "trials": options.num_trials,
        "warm_ups_dropped": 1,
        "interleaved": True,
        "decode_tokens": options.decode_tokens,
        "delay_s": options.delay_s,
        "sampling": "greedy",
        "end_of_sequence": "ignored",
        "prefix_cache": settings.prefix_cache,
        "page_size": settings.page_size,
        "pool_pages": setting.engine.readings().pages.total,
        "max_batch": settings.max_batch,
        "prefill_chunk": settings.prefill_chunk,
        "baseline": "mlx-lm" if options.has_baseline else None,
    }


def thermal() -> str:
    """Return how warm or how throttled the machine is, or why it does not tell."""
    if sys.platform == "darwin":
        told = subprocess.run(["/usr/bin/pmset", "-g", "therm"], capture_output=True, text=True, check=False).stdout
        limits = [line.strip() for line in told.splitlines() if "Limit" in line and "=" in line]
        return ", ".join(limits) or "no limit is set (pmset -g therm)"
    zones = sorted(Path("/sys/class/thermal").glob("thermal_zone*/temp"))
    values = [zone.read_text(encoding="utf-8").strip() for zone in zones]
    degrees = [int(value) / 1000 for value in values if value.lstrip("-").isdigit()]
    return f"{max(degrees):.0f} °C" if degrees else "no sensor that this system shows"


def cpu_name() -> str:
    """Return the processor's name as its system tells it."""
    source = Path("/proc/cpuinfo")
    if source.exists():
        for line in source.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return system.processor() or system.machine()


def load_average() -> list[Fact]:
    """Return what waits for the processor: mean over 1, 5 and 15 minutes; empty where the system does not tell."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else []
