"""The machine's facts, and a BLAS that is looked for without ever standing in the way."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from pathlib import Path

import pytest

from pie_mlx import platform
from pie_mlx.platform import (
    BLAS_VARIABLE,
    available_on_macos,
    blas_candidates,
    load_blas,
    memory,
    openblas_core,
    prepare,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a BLAS is loaded on Linux alone")


def test_none_leaves_the_reference_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """``none`` loads nothing and says nothing."""
    monkeypatch.setenv(BLAS_VARIABLE, "none")
    facts = prepare()
    assert (facts.blas, facts.warnings) == (None, ())


def test_a_missing_library_is_a_warning_that_names_it() -> None:
    """A path that cannot be loaded leaves a working program and one sentence."""
    code = "from pie_mlx.platform import prepare; f = prepare(); print(f.blas, *f.warnings)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={BLAS_VARIABLE: "/nowhere/libopenblas.so", "PATH": ""},
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout.startswith("None ")
    assert "/nowhere/libopenblas.so" in run.stdout


def test_a_library_without_blas_is_refused() -> None:
    """A library that loads but has no cblas_sgemm will not do."""
    libm = ctypes.util.find_library("m")
    assert libm is not None
    assert load_blas(libm) == "it has no cblas_sgemm"


def test_packages_that_carry_a_blas_are_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``*.libs`` folder beside installed packages is looked into."""
    library = tmp_path / "site-packages" / "faiss_cpu.libs" / "libopenblaso-r0.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    assert str(library) in list(blas_candidates())


AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\n"


@pytest.mark.parametrize(
    ("facts", "core"),
    [
        (f"{AMD}flags\t\t: fpu avx fma avx2 avx512f\n", "Haswell"),
        (f"{AMD}flags\t\t: fpu sse2 avx\n", None),
        (f"{AMD}", None),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx fma avx2\n", None),
        ("Features\t: fp asimd\n", None),
        ("flags", None),
        ("", None),
    ],
)
def test_kernels_for_a_cpu_that_an_old_blas_does_not_know(
    facts: str, core: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of AMD that have the instructions; nothing is named for others, or where nothing is told."""
    monkeypatch.setattr(platform, "_CPU_FACTS", tmp_path / "cpuinfo")
    assert openblas_core() is None
    (tmp_path / "cpuinfo").write_text(facts, encoding="utf-8")
    assert openblas_core() == core


@pytest.mark.parametrize("wish", [None, "Zen"])
@pytest.mark.parametrize("folder", ["faiss_cpu.libs", "lib"])
def test_kernels_are_named_for_a_wheel_that_has_none_named(
    wish: str | None, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system's library knows its system; what the user named stands."""
    (tmp_path / "cpuinfo").write_text(f"{AMD}flags\t\t: avx2 fma\n", encoding="utf-8")
    monkeypatch.setattr(platform, "_CPU_FACTS", tmp_path / "cpuinfo")
    path = str(tmp_path / folder / "libopenblas.so")
    monkeypatch.setattr(platform, "blas_candidates", lambda: [path])
    monkeypatch.setattr(platform, "load_blas", lambda _path: None)
    monkeypatch.delenv(BLAS_VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    environ = {} if wish is None else {"OPENBLAS_CORETYPE": wish}
    monkeypatch.setattr("os.environ", environ)
    assert prepare().blas == path
    assert environ.get("OPENBLAS_CORETYPE") == (wish or ("Haswell" if folder.endswith(".libs") else None))


def test_preparing_imports_no_mlx() -> None:
    """The machine is described without MLX, and a late call says that it came too late."""
    code = (
        "import sys, types; from pie_mlx.platform import prepare; prepare(); assert 'mlx.core' not in sys.modules;"
        "sys.modules['mlx.core'] = types.ModuleType('mlx.core'); print(*prepare().warnings)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": ""},
        cwd=Path(__file__).parents[2],
    )
    assert "MLX was imported before" in run.stdout


def test_memory_is_read_now() -> None:
    """Total and available memory are positive, and available is not more than total."""
    facts = memory()
    assert facts.total_bytes is not None
    assert facts.available_bytes is not None
    assert 0 < facts.available_bytes <= facts.total_bytes


def test_a_mac_counts_what_it_can_give_up() -> None:
    """File caches and purgeable pages are available; a kernel that lacks a number costs that number, not the answer."""
    counts = {
        "hw.pagesize": 16384,
        "vm.page_free_count": 100,
        "vm.page_purgeable_count": 10,
        "vm.page_pageable_external_count": 1000,
        "vm.page_pageable_internal_count": 5000,
    }
    assert available_on_macos(counts.get) == 1110 * 16384
    del counts["vm.page_pageable_external_count"]
    assert available_on_macos(counts.get) == 110 * 16384
    for name in ("hw.pagesize", "vm.page_free_count"):
        assert available_on_macos({**counts, name: None}.get) is None
