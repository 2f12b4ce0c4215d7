"""The machine's facts, and a BLAS that is looked for without ever standing in the way."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from pathlib import Path

import pytest

from pie_mlx.platform import BLAS_VARIABLE, available_on_macos, blas_candidates, load_blas, memory, prepare

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
    library = tmp_path / "site-packages" / "scs.libs" / "libopenblas-r0.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    assert str(library) in list(blas_candidates())


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
