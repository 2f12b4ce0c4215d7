"""What the machine offers, found without importing MLX; must be prepared before MLX is first imported.

MLX's CPU wheel links the reference BLAS, whose matrix product is some twenty times slower than OpenBLAS. A
BLAS that is loaded into the global symbol table *before* ``import mlx.core`` takes its place, so
:func:`prepare` has to run first. ``PIE_MLX_BLAS`` names a library, or ``none`` to leave the reference one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLAS_VARIABLE = "PIE_MLX_BLAS"
_SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/OpenBLAS/lib")
_SYSTEM_PATTERNS = ("libopenblas.so*", "openblas-*/libopenblas*.so*", "libmkl_rt.so*")
_NO_BLAS = (
    "no OpenBLAS or MKL was found: matrix products will be about twenty times slower "
    f"(install libopenblas0-pthread, or set {BLAS_VARIABLE})"
)
_CORE_VARIABLE = "OPENBLAS_CORETYPE"
_CPU_FACTS = Path("/proc/cpuinfo")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes of memory; None is a number that this system does not tell."""

    total_bytes: int | None
    available_bytes: int | None
    working_set_bytes: int | None
    """What the GPU may hold at most (macOS), a constant of the machine."""


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """The machine, the device that MLX will use, and the BLAS behind its CPU backend."""

    system: str
    machine: str
    python: str
    device: str
    """``metal`` on Apple Silicon, else ``cpu``: a forecast; the loaded backend knows better."""
    dtype: str
    """``float32`` where half precision is slow or wrong (CPU), ``native`` where the model's own is kept."""
    blas: str | None
    """The BLAS library that was loaded, None where none was needed or found."""
    warnings: tuple[str, ...]
    memory: MemoryFacts


def prepare() -> PlatformFacts:
    """Load a fast BLAS where it helps, and describe the machine; call it before the first MLX import."""
    device = expected_device()
    blas, warnings = (None, ()) if device == "metal" or sys.platform != "linux" else _prepare_blas()
    return PlatformFacts(
        system=platform.system(),
        machine=platform.machine(),
        python=platform.python_version(),
        device=device,
        dtype="native" if device == "metal" else "float32",
        blas=blas,
        warnings=warnings,
        memory=memory(),
    )


def expected_device() -> str:
    """Return ``metal`` on Apple Silicon, else ``cpu``."""
    return "metal" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"


def memory() -> MemoryFacts:
    """Read total and available memory now."""
    if sys.platform == "darwin":
        total = _sysctl("hw.memsize")
        return MemoryFacts(total, available_on_macos(_sysctl), _working_set(total))
    meminfo = _meminfo()
    return MemoryFacts(meminfo.get("MemTotal"), meminfo.get("MemAvailable"), None)


def available_on_macos(read: Callable[[str], int | None]) -> int | None:
    """Return the bytes that programs can have without anybody being swapped out; None where the kernel does not say.

    Free pages alone are few on a healthy Mac: what caches files, and what programs marked as purgeable, is given up
    first. ``read`` returns an integer of the kernel by name, None for a name that this kernel does not have.
    """
    page, free = read("hw.pagesize"), read("vm.page_free_count")
    if page is None or free is None:
        return None
    idle = [read("vm.page_purgeable_count"), read("vm.page_pageable_external_count")]
    return page * (free + sum(count or 0 for count in idle))


def _prepare_blas() -> tuple[str | None, tuple[str, ...]]:
    """Load the BLAS that was asked for, or the first that works; return its path and warnings."""
    wish = os.environ.get(BLAS_VARIABLE, "").strip()
    if wish.lower() == "none":
        return None, ()
    if "mlx.core" in sys.modules:
        return None, ("MLX was imported before a fast BLAS could be loaded: matrix products will be slow",)
    if wish:
        failure = load_blas(wish)
        return (wish, ()) if failure is None else (None, (f"{BLAS_VARIABLE}={wish}: {failure}; running without it",))
    for path in blas_candidates():
        # A system's library is as new as the system; one in a wheel may be older than the CPU.
        if Path(path).parent.name.endswith(".libs") and (core := openblas_core()) is not None:
            os.environ.setdefault(_CORE_VARIABLE, core)
        if load_blas(path) is None:
            return path, ()
    return None, (_NO_BLAS,)


def openblas_core() -> str | None:
    """Return OpenBLAS's name for the kernels of this CPU where an old OpenBLAS may not know it; None: it will.

    It takes an AMD CPU of a family that it does not know for one of 2007, without AVX, and is three times slower then;
    Intel's it tells by their instructions.
    """
    if not _CPU_FACTS.exists():
        return None
    lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in lines)}
    if facts.get("vendor_id") == ["AuthenticAMD"] and {"avx2", "fma"} <= set(facts.get("flags", ())):
        return "Haswell"
    return None


def blas_candidates() -> Iterator[str]:
    """Yield paths of BLAS libraries: the system's first, then those that installed packages carry."""
    seen: set[str] = set()
    for path in _system_libraries():
        yield from _once(path, seen)
    for folder in _package_folders():
        for pattern in ("*.libs/libopenblas*.so*", "*.libs/libmkl_rt*.so*"):
            for library in sorted(Path(folder).glob(pattern)):
                yield from _once(str(library), seen)
    for library in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*")):
        yield from _once(str(library), seen)


def _system_libraries() -> Iterator[str]:
    """Yield what the loader knows by name, then the usual library folders."""
    for name in ("openblas", "mkl_rt"):
        found = ctypes.util.find_library(name)
        if found is not None:
            yield found
    arch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    for folder in (f"/usr/lib/{arch}", *_SYSTEM_FOLDERS):
        for pattern in _SYSTEM_PATTERNS:
            yield from sorted(str(path) for path in Path(folder).glob(pattern))


def _package_folders() -> list[str]:
    """Return the folders that installed distributions live in."""
    return [path for path in dict.fromkeys(sys.path) if path.endswith(("site-packages", "dist-packages"))]


def _once(path: str, seen: set[str]) -> Iterator[str]:
    """Yield ``path`` unless the file behind it was seen."""
    real = os.path.realpath(path)
    if real not in seen:
        seen.add(real)
        yield path


def load_blas(path: str) -> str | None:
    """Load a library for every later one to bind to; return why it will not do, or None when it does."""
    try:
        _load_with_neighbours(path, ctypes.DEFAULT_MODE)
        library = ctypes.CDLL(path)
        if not hasattr(library, "cblas_sgemm"):
            return "it has no cblas_sgemm"
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return None


def _load_with_neighbours(path: str, mode: int) -> None:
    """Load a library; if one it needs is missing, load its runtimes from beside it and try again."""
    try:
        ctypes.CDLL(path, mode)
    except OSError:
        here = Path(path).resolve().parent
        for name in ("libquadmath*.so*", "libgfortran*.so*", "libgomp*.so*"):
            for folder in (here, here.parent):
                for runtime in sorted(folder.glob(name)):
                    ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(path, mode)


def _meminfo() -> dict[str, int]:
    """Read /proc/meminfo as bytes; empty where there is none."""
    source = Path("/proc/meminfo")
    if not source.exists():
        return {}
    lines = (line.split() for line in source.read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _working_set(total: int | None) -> int | None:
    """Return the GPU's share of unified memory: the user's limit, or the system's usual fraction."""
    limit = _sysctl("iogpu.wired_limit_mb")
    if limit:
        return limit * _MIB
    if total is None:
        return None
    return total * 3 // 4 if total > 36 * 1024 * _MIB else total * 2 // 3


def _sysctl(name: str) -> int | None:
    """Read one integer of the macOS kernel; None where there is no such name."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sysctlbyname"):
        return None
    value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
    failed = libc.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else int(value.value)
