"""Download the weights of a hub's repository so that a pull which was stopped goes on where it was.

The hub's own client keeps no partial file, and finishes a file that it has begun before it heeds an interrupt. So the
large files come first, one after the other, in the caller's thread; the client then finds them in its cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARTIAL = ".partial"


def fetch_weights(arguments: dict[str, Any], files: Iterable[Any], blobs: Path, locks: Path, bar: type) -> None:
    """Download the weights among ``files`` (of the client's dry run) that are missing, into the blobs of its cache.

    The part of a file that has come stays beside the blobs when the download ends early. What the whole then holds is
    not checked here.

    Raises:
        HTTPError, OSError, RuntimeError: what the client meets.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    missing = [one for one in files if one.will_download and one.filename.endswith(".safetensors")]
    wanted: dict[str, tuple[str, int]] = {}
    for one in missing:
        url = hf_hub_url(arguments["repo_id"], one.filename, revision=one.commit_hash, endpoint=arguments["endpoint"])
        sha256 = get_hf_file_metadata(url, endpoint=arguments["endpoint"]).etag
        if sha256 is not None and _SHA256.fullmatch(sha256):
            wanted[sha256] = (url, one.file_size)
    _sweep(blobs, keep=wanted)
    for sha256, (url, size) in wanted.items():
        _fetch(url, size, blobs / sha256, locks / f"{sha256}.lock", bar)


def partial_bytes(blobs: Path) -> int:
    """Return the bytes that earlier pulls have left of files that are not whole."""
    return sum(path.stat().st_size for path in blobs.glob(f"*{_PARTIAL}"))


def _sweep(blobs: Path, keep: Iterable[str]) -> None:
    """Remove the parts of files that nobody wants any more."""
    names = {f"{sha256}{_PARTIAL}" for sha256 in keep}
    for path in blobs.glob(f"*{_PARTIAL}"):
        if path.name not in names:
            path.unlink(missing_ok=True)


def _fetch(url: str, size: int, blob: Path, lock: Path, bar: type) -> None:
    """Download one file behind the part of it that is here, under the lock that the client takes for it."""
    from filelock import FileLock
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    lock.parent.mkdir(parents=True, exist_ok=True)
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(blob.name + _PARTIAL)
    with FileLock(lock):
        if blob.exists():
            return
        with partial.open("ab") as file:
            if file.tell() > size:
                file.truncate(0)
            have = file.tell()
            options: dict[str, Any] = {"tqdm_class": bar}
            http_get(url, file, resume_size=have, headers=build_hf_headers(), expected_size=size, **options)
        partial.replace(blob)
