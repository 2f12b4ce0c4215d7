"""Settings: where a value comes from, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from pie_mlx import config
from pie_mlx.errors import ConfigError, InvalidParameter, UsageError


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's file, not yet there, with an empty working folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    path = config.user_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_each_source_overrides_the_one_below(user_file: Path) -> None:
    """Flag > variable > project > user > default, and the origin says which it was."""
    user_file.write_text("page_size = 8\nmax_batch = 2\nprefill_chunk = 3\nmax_tokens = 4\n")
    config.PROJECT_FILE.write_text("max_batch = 20\nprefill_chunk = 30\nmax_tokens = 40\n")
    environ = {"PIE_MLX_PREFILL_CHUNK": "300", "PIE_MLX_MAX_TOKENS": "400"}
    loaded = config.load({"max_tokens": 4000, "temp": None}, environ=environ)
    settings = loaded.settings
    values = (settings.page_size, settings.max_batch, settings.prefill_chunk, settings.max_tokens)
    assert values == (8, 20, 300, 4000)
    origins = {key: loaded.origins[key] for key in ("page_size", "max_batch", "prefill_chunk", "max_tokens", "temp")}
    assert [origin.source for origin in origins.values()] == ["user", "project", "environment", "flag", "default"]
    assert origins["page_size"].place == f"{user_file}:1"
    assert origins["max_batch"].place == "pie-mlx.toml:1"
    assert origins["prefill_chunk"].place == "PIE_MLX_PREFILL_CHUNK"


def test_an_unknown_key_names_file_line_and_nearest_key(user_file: Path) -> None:
    """A typo in a file is found where it is."""
    user_file.write_text("# my settings\n\nmax_batch = 2\npage-sise = 8\n")
    with pytest.raises(ConfigError) as caught:
        config.load()
    error = caught.value
    assert (error.where, error.line, error.key, error.nearest) == (str(user_file), 4, "page-sise", "page_size")
    assert f"{user_file}:4" in error.message


def test_an_unknown_variable_names_the_nearest_one(user_file: Path) -> None:
    """A typo in a variable's name is not silently ignored; the folders' variables are known."""
    config.load(environ={"PIE_MLX_CACHE_DIR": "x", "PIE_MLX_BLAS": "none", "OTHER": "1"})
    with pytest.raises(ConfigError, match="PIE_MLX_PAGESIZE") as caught:
        config.load(environ={"PIE_MLX_PAGESIZE": "8"})
    assert caught.value.nearest == "PIE_MLX_PAGE_SIZE"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("page_size = 7", "8, 16, 32 or 64"),
        ("page_size = true", "8, 16, 32 or 64"),
        ('max_batch = "2"', "a whole number"),
        ("max_batch = 2.5", "a whole number"),
        ("max_batch = 0", "1 or more"),
        ("max_batch = 9999", "at most 1024"),
        ("temp = true", "a number"),
        ("temp = nan", "a finite number"),
        ("temp = inf", "a finite number"),
        ("top_p = 0", "above 0"),
        ("offline = 1", "true or false"),
        ('offline = "yes"', "true or false"),
        ('pool_memory = "4 XB"', "a size such as 4GB"),
        ("pool_memory = 0", "1 or more"),
        ("pool_memory = true", "a size such as 4GB"),
        ('color = "blue"', "'auto', 'always' or 'never'"),
        ('model = ""', "not empty"),
        ("model = 3", "text"),
        ("[max_batch]\nx = 1", "a whole number"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(user_file: Path, line: str, said: str) -> None:
    """Types and ranges are checked as written: text is no number, 1 is not true."""
    user_file.write_text(line)
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert said in caught.value.reason
    assert caught.value.line == 1


def test_a_wrong_flag_is_named_as_it_was_typed() -> None:
    """The error of a flag shows the flag."""
    with pytest.raises(InvalidParameter, match="--max-batch is 0, but it must be 1 or more"):
        config.load({"max_batch": 0})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4_000_000_000),
        ("512MiB", 512 << 20),
        ("1.5 kB", 1500),
        ("7", 7),
        ("2g", 2_000_000_000),
        (7, 7),
        ("auto", "auto"),
        (" Auto ", "auto"),
        (None, None),
    ],
)
def test_sizes_are_read_with_their_unit(text: object, size: object) -> None:
    """Decimal and binary units, any case, spaces allowed; auto is a size too."""
    assert config.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "four"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """The flag is named, and an example given."""
    with pytest.raises(InvalidParameter, match="such as 4GB"):
        config.parse_size("--pool-memory", text)


def test_the_stronger_pool_size_wins(user_file: Path) -> None:
    """A flag in pages beats a file in bytes; two sizes from one source contradict each other."""
    user_file.write_text('pool_memory = "4GB"\n')
    settings = config.load({"pool_pages": 7}).settings
    assert (settings.pool_pages, settings.pool_memory) == (7, None)
    with pytest.raises(UsageError, match="both size the pool"):
        config.load({"pool_pages": 7, "pool_memory": 8})


@pytest.mark.parametrize("line", ['pool_memory = "4GB"', "pool_pages = 7"])
def test_auto_overrides_a_number_from_a_weaker_source(user_file: Path, line: str) -> None:
    """The word means the automatic size, not that nothing was said; its origin is who said it."""
    user_file.write_text(line)
    for flags, environ, origin in (
        ({"pool_memory": "auto"}, {}, "flag"),
        ({}, {"PIE_MLX_POOL_MEMORY": "auto"}, "environment (PIE_MLX_POOL_MEMORY)"),
    ):
        loaded = config.load(flags, environ=environ)
        assert (loaded.settings.pool_pages, loaded.settings.pool_memory) == (None, "auto")
        assert str(loaded.origins["pool_memory"]) == origin


def test_auto_in_a_file_gives_way_to_a_number_in_a_flag(user_file: Path) -> None:
    """A file may say auto; whoever is stronger still names a number, in bytes or in pages."""
    user_file.write_text('pool_memory = "auto"\n')
    assert config.load().settings.pool_memory == "auto"
    assert config.load({"pool_memory": 8}).settings.pool_memory == 8
    settings = config.load({"pool_pages": 7}).settings
    assert (settings.pool_pages, settings.pool_memory) == (7, None)


def test_a_file_that_is_not_toml_names_the_line(user_file: Path) -> None:
    """A syntax error is placed too."""
    user_file.write_text("max_batch = 2\nmax_batch =\n")
    with pytest.raises(ConfigError, match="not TOML") as caught:
        config.load()
    assert caught.value.line == 2


def test_a_file_with_a_byte_order_mark_is_read(user_file: Path) -> None:
    """Some editors write one."""
    user_file.write_bytes(b"\xef\xbb\xbfmax_batch = 2\n")
    assert config.load().settings.max_batch == 2


def test_a_file_that_is_not_text_is_a_typed_error(user_file: Path) -> None:
    """Neither bytes nor a folder give a traceback."""
    user_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load()
    user_file.unlink()
    user_file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load()


def test_set_keeps_comments_and_other_values(user_file: Path) -> None:
    """Writing a value changes that value alone."""
    user_file.write_text("# mine\nmax_batch = 2 # small\ntemp = 0.5\n")
    assert config.set_value("max_batch", "4") == user_file
    assert config.set_value("pool_memory", "4GB") == user_file
    text = user_file.read_text()
    assert text.startswith("# mine\nmax_batch = 4 # small\ntemp = 0.5\n")
    settings = config.load().settings
    assert (settings.max_batch, settings.pool_memory, settings.temp) == (4, 4_000_000_000, 0.5)
    assert list(user_file.parent.iterdir()) == [user_file]


@pytest.mark.parametrize(("key", "value"), [("max_batch", "many"), ("maxbatch", "4"), ("offline", "maybe")])
def test_set_refuses_what_load_would_refuse(user_file: Path, key: str, value: str) -> None:
    """Nothing wrong gets into the file."""
    with pytest.raises(ConfigError):
        config.set_value(key, value)
    assert not user_file.exists()


def test_set_reads_booleans_and_numbers(user_file: Path) -> None:
    """A value is typed as its key wants."""
    for key, text in (("offline", "true"), ("temp", "0.25"), ("model", "123")):
        config.set_value(key, text)
    settings = config.load().settings
    assert (settings.offline, settings.temp, settings.model) == (True, 0.25, "123")


def test_every_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind has a variable; without it the folder is named after the program."""
    kinds: tuple[Literal["config", "state", "data", "cache"], ...] = ("config", "state", "data", "cache")
    for kind in kinds:
        monkeypatch.setenv(f"PIE_MLX_{kind.upper()}_DIR", str(tmp_path / kind))
        assert config.folder(kind) == tmp_path / kind
        monkeypatch.delenv(f"PIE_MLX_{kind.upper()}_DIR")
        assert "pie-mlx" in str(config.folder(kind))
