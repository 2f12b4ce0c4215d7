"""Pull a repository of the model hub into the hub's own cache."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pie_mlx.errors import ChecksumMismatch, DownloadFailed, NetworkUnavailable, PieError
from pie_mlx.models.fetch_weights import fetch_weights, partial_bytes
from pie_mlx.models.install import disk_full, is_disk_full
from pie_mlx.models.progress import PullProgress, Report, watching
from pie_mlx.models.sources import HubSource

PATTERNS = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]
"""What a model folder needs; never code."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK_BYTES = 1 << 20


def is_offline() -> bool:
    """Whether the hub's own variables switch the network off."""
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def fetch_hub(name: str, source: HubSource, cache: Path, report: Report, *, offline: bool) -> Path:
    """Download what is missing of a repository into ``cache``; return the snapshot's folder.

    A broken connection is resumed; after an interrupt the next pull goes on where the weights were.

    Raises:
        NetworkUnavailable: offline and not complete in the cache, or the hub cannot be reached.
        DownloadFailed: the hub refused: no such repository or revision, or no access.
        ChecksumMismatch: a file is not what the hub announced.
        DiskFull: the files do not fit.
    """
    arguments: dict[str, Any] = {
        "repo_id": source.repository,
        "revision": source.revision,
        "cache_dir": cache,
        "allow_patterns": PATTERNS,
        "endpoint": os.environ.get("HF_ENDPOINT") or None,
        "tqdm_class": _silent_bars(),
    }
    if offline or is_offline():
        return _from_cache(name, arguments)
    report(PullProgress(name, "checking"))
    repository = f"models--{source.repository.replace('/', '--')}"
    blobs, locks = cache / repository / "blobs", cache / ".locks" / repository
    files = _needed_files(name, cache, arguments, blobs)
    total = sum(file.file_size for file in files)
    # The client's own words about each retry would break into the front end's progress line.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    _sweep_incomplete(blobs, locks)
    with watching(name, blobs, total, report):
        folder = _download(name, arguments, lambda: fetch_weights(arguments, files, blobs, locks, _silent_bars()))
    _verify(name, folder, report)
    return folder


def _sweep_incomplete(blobs: Path, locks: Path) -> None:
    """Remove the partial files of downloads that were killed; one that still runs holds its file's lock."""
    from filelock import FileLock, Timeout

    for partial in blobs.glob("*.incomplete"):
        locks.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(locks / f"{partial.name.split('.')[0]}.lock", timeout=0):
                partial.unlink(missing_ok=True)
        except Timeout:
            continue


def _silent_bars() -> type:
    """Return a progress bar that shows nothing: standard error belongs to the front end."""
    bar: Any = importlib.import_module("tqdm").tqdm

    def start(self: Any, *args: Any, **options: Any) -> None:
        bar.__init__(self, *args, **{key: value for key, value in options.items() if key != "name"} | {"disable": True})

    return type("SilentBar", (bar,), {"__init__": start})


def _from_cache(name: str, arguments: dict[str, Any]) -> Path:
    """Return the snapshot if the cache holds it whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(**arguments, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise NetworkUnavailable(
            name,
            f"{arguments['repo_id']} is not in the cache, and the network is switched off",
            f"pull it once with the network on: pie-mlx pull {name}",
        ) from error


def _needed_files(name: str, cache: Path, arguments: dict[str, Any], blobs: Path) -> list[Any]:
    """Return the files of the whole snapshot, having checked that what is missing of it fits the disk."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        files = snapshot_download(**arguments, dry_run=True)
    except (HTTPError, OSError, ValueError) as error:
        _raise_typed(name, arguments, error)
    if not any(file.filename.endswith(".safetensors") for file in files):
        raise DownloadFailed(name, f"{arguments['repo_id']} holds no model*.safetensors: it is not an MLX model")
    missing = sum(file.file_size for file in files if file.will_download) - partial_bytes(blobs)
    cache.mkdir(parents=True, exist_ok=True)
    if missing > shutil.disk_usage(cache).free:
        raise disk_full(cache, missing)
    return list(files)


def _download(name: str, arguments: dict[str, Any], weights_first: Callable[[], None]) -> Path:
    """Run the download; one fault of the network is not yet the end: the next try resumes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        weights_first()
        return Path(snapshot_download(**arguments, max_workers=4))
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        if is_disk_full(error):
            raise disk_full(arguments["cache_dir"]) from error
        _raise_typed(name, arguments, error)


def _raise_typed(name: str, arguments: dict[str, Any], error: Exception) -> NoReturn:
    """Raise the error of ours that says what the hub's client met."""
    from huggingface_hub.errors import (
        DryRunError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = arguments["repo_id"], arguments["revision"]
    # The client wraps what it met once it has looked into its cache in vain.
    cause: BaseException = error
    while isinstance(cause, DryRunError | LocalEntryNotFoundError) and cause.__cause__ is not None:
        cause = cause.__cause__
    found: PieError
    if isinstance(cause, GatedRepoError):
        found = DownloadFailed(name, f"{repository} wants you to accept its terms first", "hf auth login")
    elif isinstance(cause, RevisionNotFoundError):
        found = DownloadFailed(name, f"{repository} has no revision {revision!r}")
    elif isinstance(cause, RepositoryNotFoundError):
        found = DownloadFailed(
            name, f"the hub has no repository {repository}, or you may not see it", "check the name, or: hf auth login"
        )
    elif isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        if status in (401, 403):
            found = DownloadFailed(name, f"the hub refuses access to {repository} ({status})", "hf auth login")
        else:
            found = DownloadFailed(name, f"the hub answered {status} for {repository}", f"pie-mlx pull {name}")
    else:
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        found = NetworkUnavailable(
            name,
            f"the hub could not be reached: {reason}",
            f"check the network, then: pie-mlx pull {name} (it resumes)",
        )
    raise found from error


def _verify(name: str, folder: Path, report: Report) -> None:
    """Compare every large file with its checksum, which the cache keeps as the file's name."""
    files = [(path, path.resolve()) for path in folder.rglob("*") if path.is_file()]
    files = [(path, blob) for path, blob in files if _SHA256.fullmatch(blob.name)]
    total = sum(blob.stat().st_size for _, blob in files)
    done = 0
    for path, blob in files:
        report(PullProgress(name, "verifying", done, total))
        if sha256_of(blob) != blob.name:
            blob.unlink()
            path.unlink(missing_ok=True)
            raise ChecksumMismatch(
                name, f"{path.name} is not the file the hub announced; it was removed", f"pie-mlx pull {name}"
            )
        done += blob.stat().st_size


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def remove_snapshot(folder: Path, cache: Path) -> None:
    """Remove a snapshot from the hub's cache, with the blobs that no other snapshot shares."""
    from huggingface_hub import scan_cache_dir

    scan_cache_dir(cache).delete_revisions(folder.name).execute()
