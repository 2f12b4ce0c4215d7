# ruff: noqa: INP001 a script, not a module
"""Measure ``pie-mlx serve`` against mlx-lm's own server: the same weights, clients and prompts, in turn, in one run.

Both servers are processes of their own on this machine and stay loaded; only one is asked at a time, and who goes
first changes. Every trial has prompts that neither has seen. Answers are greedy and streamed; tokens are counted by
each server's own usage, and equal answers are told. Writes one table, or JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from pie_mlx.backend.mlx.device import device_name
from pie_mlx.models.fetch import pull
from pie_mlx.models.load import load_model
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.platform import prepare

_PATIENCE_S = 900
_THEIRS = "from pie_mlx.platform import prepare; prepare(); from mlx_lm.server import main; main()"
_WORDS = (
    "river", "stone", "light", "winter", "garden", "paper", "engine", "window", "letter", "mountain", "silver", "quiet",
    "market", "bridge", "forest", "copper", "island", "harbour", "lantern", "morning", "thunder", "valley", "meadow",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """How many clients ask at the same time, and how much of their prompts is the same."""

    clients: int
    shared_tokens: int
    own_tokens: int

    @property
    def name(self) -> str:
        """The case in words."""
        shared = f"{self.shared_tokens:,} shared + " if self.shared_tokens else ""
        return f"{self.clients} clients, {shared}{self.own_tokens} tokens of prompt"


@dataclass(frozen=True)
class Reply:
    """One client's answer."""

    text: str
    tokens: int
    cached: int
    first_s: float


@dataclass(frozen=True)
class Round:
    """What all clients of a case got from one server."""

    replies: tuple[Reply, ...]
    wall_s: float
    processor_s: float
    """What the server's process used; unlike the time of the wall it does not depend on what else runs."""

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens of all clients over the time from the first question to the last answer."""
        return sum(reply.tokens for reply in self.replies) / self.wall_s

    @property
    def first_s(self) -> float:
        """The median client's time to its first token."""
        return statistics.median(reply.first_s for reply in self.replies)


class Prompts:
    """Prompts of a given number of tokens that were never asked before."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        """Draw words by a seed."""
        self._tokenizer = tokenizer
        self._draw = random.Random(seed)  # noqa: S311  words, no secret

    def of(self, case: Case) -> list[str]:
        """Return one prompt a client."""
        shared = self._text(case.shared_tokens) if case.shared_tokens else ""
        return [
            f"{shared}{self._text(case.own_tokens)} Tell a long story with these words." for _ in range(case.clients)
        ]

    def _text(self, num_tokens: int) -> str:
        """Return random words of about this many tokens."""
        text = ""
        while len(self._tokenizer.encode(text)) < num_tokens:
            text += " ".join(self._draw.choice(_WORDS) for _ in range(8)) + ". "
        return text


def ask(url: str, model: str, prompt: str, max_tokens: int) -> Reply:
    """Ask greedily, and read the stream to its end."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, first_s = "", 0.0
    usage: dict[str, Any] = {}
    began = time.perf_counter()
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=_PATIENCE_S) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            piece = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if piece and not text:
                first_s = time.perf_counter() - began
            text += piece
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Reply(text, usage["completion_tokens"], cached, first_s)


@dataclass(frozen=True)
class Side:
    """A server that runs, and what it calls the model."""

    url: str
    model: str
    pid: int


def play(side: Side, prompts: list[str], max_tokens: int) -> Round:
    """Let every client ask at the same moment."""
    used, began = processor_s(side.pid), time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = tuple(pool.map(lambda prompt: ask(side.url, side.model, prompt, max_tokens), prompts))
    return Round(replies, time.perf_counter() - began, processor_s(side.pid) - used)


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.is_file():
        user, system = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    command = ["/bin/ps", "-o", "time=", "-p", str(pid)]
    minutes, _, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition(":")
    return 60 * float(minutes.strip() or 0) + float(seconds)


def write_folder(source: Path, folder: Path) -> None:
    """Write the weights as the engine computes with them on this machine, in the layout that mlx-lm reads."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    for file in source.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    if device_name() != "cpu":
        (folder / "model.safetensors").symlink_to(source / "model.safetensors")
        return
    module = load_model(source, dequantize=True).module
    weights = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    plain = {key: value for key, value in config.items() if not key.startswith("quantization")}
    (folder / "config.json").write_text(json.dumps(plain), encoding="utf-8")


@contextmanager
def running(command: list[str], url: str, model: str) -> Iterator[Side]:
    """Start a server, wait until it answers, and end it afterwards."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end_s = time.monotonic() + _PATIENCE_S
            while process.poll() is None and time.monotonic() < end_s:
                try:
                    if httpx2.get(f"{url}/v1/models", timeout=10).status_code == 200:
                        break
                except httpx2.HTTPError:
                    time.sleep(0.2)
            yield Side(url, model, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def measure(flags: argparse.Namespace, cases: list[Case]) -> list[dict[str, Any]]:
    """Start both servers and play every case; return one row a case."""
    source = pull(flags.model)
    prompts = Prompts(Tokenizer.from_folder(source), flags.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_folder(source, folder)
        ports = (free_port(), free_port())
        ours = [sys.executable, "-m", "pie_mlx", "serve", "--model", flags.model, "--port", str(ports[0])]
        theirs = [sys.executable, "-c", _THEIRS, "--model", str(folder), "--port", str(ports[1])]
        sides = {
            "ours": stack.enter_context(running(ours, f"http://127.0.0.1:{ports[0]}", flags.model)),
            "mlx-lm": stack.enter_context(running(theirs, f"http://127.0.0.1:{ports[1]}", "default_model")),
        }
        for side in sides.values():
            play(side, prompts.of(Case(4, 0, 40)), 8)
        return [_row(case, _trials(case, sides, prompts, flags)) for case in cases]


def _trials(case: Case, sides: dict[str, Side], prompts: Prompts, flags: argparse.Namespace) -> list[dict[str, Round]]:
    """Play a case several times; who goes first changes."""
    trials = []
    for number in range(flags.trials):
        asked = prompts.of(case)
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        trials.append({side: play(sides[side], asked, flags.max_tokens) for side in order})
        rounds = {side: trials[-1][side] for side in order}
        told = ", ".join(f"{side} {r.tokens_per_s:.1f} tok/s, {r.processor_s:.1f} s" for side, r in rounds.items())
        sys.stderr.write(f"{case.name}: {told}\n")
    return trials


def _row(case: Case, trials: list[dict[str, Round]]) -> dict[str, Any]:
    """Return a case's medians, and the ratio of each trial."""
    pairs = [pair for trial in trials for pair in zip(trial["ours"].replies, trial["mlx-lm"].replies, strict=True)]
    return {
        "case": case.name,
        **{
            f"{what}_{side.replace('-', '_')}": statistics.median(getattr(trial[side], what) for trial in trials)
            for side in ("ours", "mlx-lm")
            for what in ("tokens_per_s", "first_s", "processor_s")
        },
        "ratios": [round(trial["ours"].tokens_per_s / trial["mlx-lm"].tokens_per_s, 2) for trial in trials],
        "processor_ratios": [round(t["mlx-lm"].processor_s / t["ours"].processor_s, 2) for t in trials],
        "cached_ours": statistics.median(reply.cached for trial in trials for reply in trial["ours"].replies),
        "cached_mlx_lm": statistics.median(reply.cached for trial in trials for reply in trial["mlx-lm"].replies),
        "equal_answers": f"{sum(one.text == other.text for one, other in pairs)}/{len(pairs)}",
    }


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-tokens", type=int, default=100, help="0 leaves these cases out")
    parser.add_argument("--shared-tokens", type=int, default=1000, help="0 leaves these cases out")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    prepare()
    kinds = ((0, flags.prompt_tokens), (flags.shared_tokens, 20 if flags.shared_tokens else 0))
    cases = [Case(clients, shared, own) for shared, own in kinds if own for clients in flags.clients]
    rows = measure(flags, cases)
    if flags.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    sys.stdout.write(
        "| case | ours | mlx-lm | ratio, by trial | ratio of processor time | first token | equal answers |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for row in rows:
        cells = (
            row["case"],
            f"{row['tokens_per_s_ours']:.1f} tok/s",
            f"{row['tokens_per_s_mlx_lm']:.1f} tok/s",
            ", ".join(map(str, row["ratios"])),
            ", ".join(map(str, row["processor_ratios"])),
            f"{row['first_s_ours']:.2f} s, {row['first_s_mlx_lm']:.2f} s",
            row["equal_answers"],
        )
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
