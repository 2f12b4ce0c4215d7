"""`kill -9` at any moment of a save: the old snapshot or the new one is there, whole, and no rubbish stays."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
    import os, random, signal, sys, time
    from pathlib import Path
    import numpy as np
    from pie_mlx.kv import snapshot
    from pie_mlx.kv.snapshot import SnapshotStore

    def save(length):
        arrays = {"k.0": np.full((length, 2, 3), length, dtype=np.float32)}
        store.save("a", model="m", fingerprint="f", tokens=list(range(length)), arrays=arrays)

    def child(work):
        process = os.fork()
        if process == 0:
            work()
            os._exit(0)
        return process

    def check(lengths):
        assert store.names() == ["a"]
        loaded = store.load("a", fingerprint="f")
        assert len(loaded.tokens) in lengths
        assert (loaded.arrays["k.0"] == len(loaded.tokens)).all()

    def save_until(line):
        left = line
        def count(frame, event, _argument):
            nonlocal left
            if frame.f_code.co_filename != snapshot.__file__:
                return None
            left -= event == "line"
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return count
        sys.settrace(count)
        save(20)
        sys.settrace(None)

    store = SnapshotStore(Path(sys.argv[1]))
    # At every line of our own code.
    line, num_killed, was_killed = 0, 0, True
    while was_killed:
        line += 1
        save(10)
        process = child(lambda: save_until(line))
        status = os.waitpid(process, 0)[1]
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert was_killed or status == 0
        num_killed += was_killed
        check({10, 20})
    # At any moment in the libraries and the system: large files, one after the other.
    chance = random.Random(1)
    def save_for_ever():
        while True:
            save(100_000)
            save(90_000)
    save(90_000)
    for _ in range(20):
        process = child(save_for_ever)
        time.sleep(chance.uniform(0.0, 0.04))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        check({90_000, 100_000})
    save(1)
    print(num_killed, sorted(path.name for path in store.folder.iterdir()))
"""


def test_killed_at_every_line_and_at_many_moments(tmp_path: Path) -> None:
    """Each line of the code that saves is the last one of some process, and so is any moment of the writing."""
    program = textwrap.dedent(PROGRAM)
    run = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(run, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    num_killed, _, left = done.stdout.strip().partition(" ")
    assert int(num_killed) > 30, "there are that many lines"
    assert left == "['a.safetensors']", "the next save sweeps what the killed ones left"


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    """Only the remains of processes that are gone are swept."""
    from pie_mlx.kv.snapshot import SnapshotStore

    (tmp_path / ".partial-1-abc").mkdir()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True, capture_output=True)
    (tmp_path / f".partial-{int(gone.stdout)}-abc").mkdir()
    (tmp_path / f".partial-{int(gone.stdout)}-abc" / "a.safetensors").write_bytes(b"half")
    SnapshotStore(tmp_path).save("a", model="m", fingerprint="f", tokens=[1], arrays={})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".partial-1-abc", "a.safetensors"]
