"""Pulling from the hub: the real client against a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from pie_mlx.errors import (
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    ModelError,
    ModelNotFound,
    NetworkUnavailable,
    TokenizerMissing,
    UnsupportedModel,
)
from pie_mlx.models.fetch import PullProgress, installed, locate, pull, remove

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = "hf:me/tiny"


@dataclass
class Hub:
    """A repository ``me/tiny`` behind the hub's API, and the faults it shall have."""

    files: dict[str, bytes]
    status: int = 200
    """Of every answer about the repository."""
    cuts: int = 0
    """How many downloads of the weights end in the middle."""
    corrupt: bool = False
    """Whether the weights that are sent are not those announced."""
    ranges: list[str] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.hub.status != 200:
            code = {404: "RepoNotFound", 403: "GatedRepo"}.get(self.hub.status)
            self._send(self.hub.status, b"{}", {} if code is None else {"X-Error-Code": code}, body=body)
        elif re.fullmatch(r"/api/models/me/tiny(/revision/(main|[0-9a-f]{40}))?", path):
            siblings = [{"rfilename": name} for name in self.hub.files]
            self._json({"id": "me/tiny", "sha": COMMIT, "siblings": siblings}, body=body)
        elif path.startswith("/api/models/me/tiny/revision/"):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body=body)
        elif path.startswith("/api/models/me/tiny/tree/"):
            self._json([self._entry(name, content) for name, content in self.hub.files.items()], body=body)
        elif path.startswith("/me/tiny/resolve/"):
            self._file(path.split("/", 5)[5], body=body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _git(content)}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}
        return entry

    def _json(self, document: object, *, body: bool) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"}, body=body)

    def _file(self, name: str, *, body: bool) -> None:
        content = self.hub.files[name]
        weights = name.endswith(".safetensors")
        etag = hashlib.sha256(content).hexdigest() if weights else _git(content)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if weights:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        start, asked = 0, self.headers.get("Range")
        if body:
            self.hub.downloads.append(name)
        if asked and body:
            self.hub.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        sent = content[start:]
        if weights and self.hub.corrupt:
            sent = bytes(byte ^ 255 for byte in sent)
        cut = None
        if weights and body and self.hub.cuts > 0:
            self.hub.cuts -= 1
            cut = len(sent) // 2
        self._send(206 if start else 200, sent, headers, body=body, cut=cut)

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], *, body: bool, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if body:
            self.wfile.write(content[:cut])


def _git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub(tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a hub with the tiny model, and point the client and the cache at this test's own places."""
    files = {path.name: path.read_bytes() for path in tiny_source.iterdir()} | {"evil.py": b"boom", "README.md": b"hi"}
    state = Hub(files)
    handler = type("Handler", (_Handler,), {"hub": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", state.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("PIE_MLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # What is read but not yet a whole chunk is lost when a connection breaks: the tiny file needs small chunks.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def _leftovers(tmp_path: Path) -> list[str]:
    """Return what lies in the folder of models, hidden work folders too."""
    folder = tmp_path / "cache" / "models"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_pull_installs_and_locates(hub: Hub, tmp_path: Path) -> None:
    """A pulled model is found again, loads, and holds no code of its repository."""
    from pie_mlx.models.load import load_model

    seen: list[PullProgress] = []
    folder = pull(SOURCE, progress=seen.append)
    assert locate(SOURCE) == folder
    assert [item.name for item in installed()] == [SOURCE]
    assert not (folder / "evil.py").exists()
    assert load_model(folder).context_tokens == 256
    phases = [report.phase for report in seen]
    assert phases[0] == "checking"
    assert phases[-1] == "done"
    total = sum(len(content) for name, content in hub.files.items() if name not in ("evil.py", "README.md"))
    last = [report for report in seen if report.phase == "downloading"][-1]
    assert (last.done_bytes, last.total_bytes) == (total, total)


def test_second_pull_asks_nobody(hub: Hub) -> None:
    """A model that is here is not looked up again."""
    pull(SOURCE)
    hub.status = 500
    assert pull(SOURCE) == locate(SOURCE)


def test_cut_connection_is_resumed(hub: Hub) -> None:
    """A download cut in the middle goes on from there, and the whole file is right."""
    hub.cuts = 1
    folder = pull(SOURCE)
    size = len(hub.files["model.safetensors"])
    assert hub.ranges == [f"bytes={size // 2 // 10_000 * 10_000}-"]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_failed_pull_leaves_no_model_and_the_next_goes_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the connection stays broken the pull fails; a later one fetches only what has not come."""
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)
    hub.cuts = 100
    with pytest.raises(NetworkUnavailable) as caught:
        pull(SOURCE)
    assert caught.value.hint is not None
    assert f"pie-mlx pull {SOURCE}" in caught.value.hint
    assert installed() == ()
    with pytest.raises(ModelNotFound):
        locate(SOURCE)
    hub.cuts = 0
    came = len(hub.ranges)
    folder = pull(SOURCE)
    (asked,) = hub.ranges[came:]
    assert int(asked.removeprefix("bytes=").rstrip("-")) > len(hub.files["model.safetensors"]) // 2
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_partial_files_of_killed_pulls_are_swept(hub: Hub, tmp_path: Path) -> None:
    """What a killed download left is removed, but not what another program is downloading just now."""
    from filelock import FileLock

    cache = tmp_path / "cache" / "hub"
    blobs, locks = cache / "models--me--tiny" / "blobs", cache / ".locks" / "models--me--tiny"
    blobs.mkdir(parents=True)
    locks.mkdir(parents=True)
    for name in ("dead.1.incomplete", "busy.2.incomplete"):
        (blobs / name).write_bytes(b"x")
    with FileLock(locks / "busy.lock"):
        pull(SOURCE)
    assert [path.name for path in blobs.glob("*.incomplete")] == ["busy.2.incomplete"]


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no repository me/tiny"), (401, "refuses access to me/tiny"), (403, "accept its terms")]
)
def test_refusals_of_the_hub(hub: Hub, status: int, words: str) -> None:
    """A repository that is not there, hidden or gated is said to be so."""
    hub.status = status
    with pytest.raises(DownloadFailed, match=words) as caught:
        pull(SOURCE)
    assert caught.value.hint is not None


def test_unknown_revision(hub: Hub) -> None:
    """A revision that is not there is named."""
    with pytest.raises(DownloadFailed, match="no revision 'v9'"):
        pull("hf:me/tiny@v9")


def test_corrupt_download_is_not_installed(hub: Hub) -> None:
    """Weights that are not what was announced are removed, and the next pull fetches them anew."""
    hub.corrupt = True
    with pytest.raises(ChecksumMismatch, match=r"model\.safetensors"):
        pull(SOURCE)
    assert installed() == ()
    hub.corrupt = False
    assert (pull(SOURCE) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"tokenizer.json": None}, TokenizerMissing),
        ({"model.safetensors": None}, DownloadFailed),
        ({"config.json": b'{"model_type": "unheard-of"}'}, UnsupportedModel),
    ],
)
def test_unusable_repository_is_not_installed(
    hub: Hub, tmp_path: Path, change: dict[str, bytes | None], error: type[ModelError]
) -> None:
    """A repository that would not load is refused at the pull, and leaves no model behind."""
    files = {**hub.files, **change}
    hub.files = {name: content for name, content in files.items() if content is not None}
    with pytest.raises(error):
        pull(SOURCE)
    assert installed() == ()
    assert _leftovers(tmp_path) == []


def test_no_space_is_known_before_the_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model larger than the free space is refused before its first byte."""
    from shutil import disk_usage

    full = disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: full)
    with pytest.raises(DiskFull, match="needed") as caught:
        pull(SOURCE)
    assert hub.downloads == []
    assert caught.value.hint is not None


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_offline_is_an_immediate_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """With the network switched off nobody is asked, and the error says how to pull."""
    if by == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.status = 500
    with pytest.raises(NetworkUnavailable, match="switched off") as caught:
        pull(SOURCE, offline=by == "argument")
    assert caught.value.hint == f"pull it once with the network on: pie-mlx pull {SOURCE}"
    assert hub.downloads == []


def test_offline_uses_what_other_programs_fetched(hub: Hub, tmp_path: Path) -> None:
    """A repository that is whole in the hub's cache installs without network."""
    folder = pull(SOURCE)
    (tmp_path / "cache" / "models" / "hf--me--tiny--main" / "pie-mlx.json").unlink()
    hub.status = 500
    assert pull(SOURCE, offline=True) == folder


def test_unreachable_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub nobody answers for is a missing network, not a missing model."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NetworkUnavailable, match="could not be reached"):
        pull(SOURCE)


def test_remove_frees_the_disk(hub: Hub, tmp_path: Path) -> None:
    """A removed model is gone from the list and from the disk."""
    folder = pull(SOURCE)
    assert remove(SOURCE) >= len(hub.files["model.safetensors"])
    assert not folder.exists()
    assert (installed(), _leftovers(tmp_path)) == ((), [])
    with pytest.raises(ModelNotFound):
        remove(SOURCE)


def test_cleaned_hub_cache_is_noticed(hub: Hub) -> None:
    """A model whose files another program removed is not installed any more, and can be pulled again."""
    import shutil

    folder = pull(SOURCE)
    shutil.rmtree(folder.parents[1])
    with pytest.raises(ModelNotFound, match="not on this machine yet"):
        locate(SOURCE)
    assert pull(SOURCE).is_dir()


def test_two_pulls_at_once_take_turns(hub: Hub) -> None:
    """Two pulls of one model download it once."""
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(pull(SOURCE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders[0] == folders[1]
    assert hub.downloads.count("model.safetensors") == 1
