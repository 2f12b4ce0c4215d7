"""The server's page in the documentation: its commands run, its tables name what there is."""

from __future__ import annotations

import json
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.server.app import PATHS
from pie_mlx.server.settings import ServerSettings

PAGE = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"


def blocks(kind: str = "") -> list[str]:
    """Return the code blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_curl_line_answers(serve: Any) -> None:
    """Each command of the page succeeds as it stands, but for the port."""
    server = serve(pages=512)
    lines = [block.strip() for block in blocks() if block.startswith("curl ")]
    assert len(lines) == len({path.path.partition("{")[0].rstrip("/") for path in PATHS}) + 2
    for line in lines:
        command = [*shlex.split(line.replace(ADDRESS, server.url)), "--fail-with-body", "--max-time", "30"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert done.stdout.strip(), line
        if "-sN" not in command and not line.endswith("/metrics"):
            json.loads(done.stdout)


def test_the_openai_example_runs(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The client's example prints its four answers and the usage."""
    server = serve(served_name="smollm2-135m")
    (example,) = blocks("python")
    exec(compile(example.replace(ADDRESS, server.url), "docs/server.md", "exec"), {})
    assert len(capsys.readouterr().out.strip().splitlines()) == 5


def test_the_page_names_every_path_and_default() -> None:
    """The table of endpoints is complete, and its limits are the settings' own."""
    told = set(re.findall(r"^\| `(GET|POST) (/[^`]*)`", PAGE, re.MULTILINE))
    assert told == {(p.method, p.path.replace(":path", "")) for p in PATHS}
    own = ServerSettings()
    for text in (
        f"{own.max_body_bytes >> 20} MiB; {own.body_timeout_s:.0f} s",
        f"{own.max_headers}, {own.max_header_bytes >> 10} KiB",
        f"| {own.max_choices} |",
        f"{own.max_running}, {own.max_waiting}",
        f"{own.max_searches}, {own.max_waiting_searches}",
        f"width {own.max_search_width}, {own.max_search_nodes} nodes",
        f"{own.request_timeout_s:.0f} s (`--request-timeout`)",
        f"| {own.max_connections} |",
    ):
        assert text in PAGE, text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_systemd_unit_is_one(tmp_path: Path) -> None:
    """Systemd knows every key of the unit and its value; the program is put where there is one."""
    unit = tmp_path / "pie-mlx.service"
    (text,) = blocks("ini")
    unit.write_text(text.replace("/opt/pie-mlx/bin/pie-mlx", sys.executable), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert unit.name not in done.stdout + done.stderr, done.stderr
    assert "Restart=on-failure" in text


def test_the_launchd_file_is_one() -> None:
    """The property list can be read, and gives the drain its time."""
    facts = plistlib.loads(blocks("xml")[0].encode())
    assert facts["ProgramArguments"][1] == "serve"
    assert facts["ExitTimeOut"] > ServerSettings().drain_timeout_s
