"""A conversation survives its process: crashes, two processes at once, another model, snapshots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.chat.errors import SessionError, SessionNotFound
from pie_mlx.chat.saving import delete_session
from pie_mlx.chat.turns import TurnState
from pie_mlx.engine import Engine
from pie_mlx.kv.snapshot import SnapshotStore

Say = Callable[[ChatSession, str], str]
Start = Callable[..., Engine]

_CHILD = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("chat_scripted", sys.argv[1])
scripted = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = scripted
spec.loader.exec_module(scripted)
from pie_mlx.chat import ChatSession, SessionStore
engine = scripted.start_engine(lambda text: "word " * 1000, pause_s=0.005)
session = ChatSession.new(engine, SessionStore(Path(sys.argv[2])), name="doomed")
for piece in session.send("go"):
    sys.stdout.write(piece.answer)
    sys.stdout.flush()
"""


def test_a_killed_process_leaves_the_partial_reply(start: Start, tmp_path: Path, say: Say) -> None:
    """After kill -9 in mid-reply the session opens with what was written, marked, and can go on."""
    path = tmp_path / "chat.sqlite3"
    script = Path(__file__).with_name("scripted.py")
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(script), str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    shown = b""
    while len(shown) < 200:
        chunk = os.read(child.stdout.fileno(), 100)
        assert chunk, "the child must stream until it is killed"
        shown += chunk
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with SessionStore(path) as store, ChatSession.resume(start(), store, "doomed") as session:
        turn = session.path()[-1]
        assert turn.state is TurnState.PARTIAL
        assert turn.text.startswith("word word ")
        assert any("not complete" in notice for notice in session.take_notices())
        assert say(session, "still there?") == "echo still there?"


def test_two_processes_in_one_session_lose_nothing(start: Start, tmp_path: Path, say: Say) -> None:
    """Who moves a branch second goes on under a new name, is told, and both find all turns later."""
    path = tmp_path / "chat.sqlite3"
    engine = start()
    with SessionStore(path) as one, SessionStore(path) as two:
        first = ChatSession.new(engine, one, name="shared")
        say(first, "root")
        second = ChatSession.resume(engine, two, "shared")
        say(first, "from one")
        say(second, "from two")
        assert second.branch == "main.2"
        assert any("another program" in notice for notice in second.take_notices())
        assert [turn.text for turn in second.path()] == ["root", "echo root", "from two", "echo from two"]
        say(second, "more")
        assert first.conversation.fork("main.3") == "main.3"
        first.close()
        second.close()
    with SessionStore(path) as store:
        tree = store.load(store.find("shared").id)
        assert [turn.text for turn in tree.path(tree.branches["main"])][2] == "from one"
        assert len(tree.path(tree.branches["main.2"])) == 6


def test_a_name_that_another_process_took_is_avoided(start: Start, tmp_path: Path, say: Say) -> None:
    """Two processes that fork to the same name get two branches."""
    path = tmp_path / "chat.sqlite3"
    engine = start()
    with SessionStore(path) as one, SessionStore(path) as two:
        first = ChatSession.new(engine, one, name="shared")
        say(first, "root")
        second = ChatSession.resume(engine, two, "shared")
        assert first.conversation.fork("idea") == "idea"
        assert second.conversation.fork("idea") == "idea.2"
        first.close()
        second.close()


def test_a_session_deleted_elsewhere_is_a_typed_error(start: Start, tmp_path: Path, say: Say) -> None:
    """A message into a session that is gone is refused; nothing hangs and no request is left."""
    path = tmp_path / "chat.sqlite3"
    engine = start()
    with SessionStore(path) as one, SessionStore(path) as two:
        session = ChatSession.new(engine, one)
        say(session, "one")
        two.delete(session.facts.id)
        with pytest.raises(SessionNotFound):
            session.send("two")
        assert not engine.readings().requests
        session.close()


def test_resuming_reads_branches_and_settings(start: Start, store: SessionStore, say: Say) -> None:
    """Branches, the current one, the system text and settings are as they were left."""
    engine = start()
    with ChatSession.new(engine, store, name="trip", system="be brief") as session:
        say(session, "one")
        session.conversation.fork("idea")
        say(session, "two")
        session.change(settings=session.settings.changed("temp", "0.5"))
    with ChatSession.resume(engine, store, "trip") as session:
        assert session.branch == "idea"
        assert session.system == "be brief"
        assert session.settings.temperature == 0.5
        assert [turn.text for turn in session.path()] == ["one", "echo one", "two", "echo two"]
        assert say(session, "three") == "echo three"


def test_a_snapshot_makes_resuming_instant(start: Start, store: SessionStore, say: Say, tmp_path: Path) -> None:
    """With a saved context only the new message is computed; an older snapshot of the session is replaced."""
    snapshots = SnapshotStore(tmp_path / "snapshots")
    with ChatSession.new(start(), store, name="trip", snapshots=snapshots) as session:
        say(session, "one " * 50)
        session.save()
        say(session, "two")
        facts = session.save()
        assert facts is not None
        tokens = session.num_tokens
        assert len(snapshots.names()) == 1
    with ChatSession.resume(start(), store, "trip", snapshots=snapshots) as session:
        assert any("ready" in notice for notice in session.take_notices())
        assert say(session, "three") == "echo three"
        assert session.last is not None
        assert session.last.cached_tokens == tokens


def test_a_damaged_snapshot_costs_time_and_nothing_else(
    start: Start, store: SessionStore, say: Say, tmp_path: Path
) -> None:
    """The conversation is read anew, with a notice."""
    snapshots = SnapshotStore(tmp_path / "snapshots")
    with ChatSession.new(start(), store, name="trip", snapshots=snapshots) as session:
        say(session, "one")
        session.save()
    (file,) = snapshots.folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    with ChatSession.resume(start(), store, "trip", snapshots=snapshots) as session:
        assert any("read anew" in notice for notice in session.take_notices())
        assert say(session, "two") == "echo two"


def test_another_model_resumes_by_reading_anew(start: Start, store: SessionStore, say: Say, tmp_path: Path) -> None:
    """A session of one model goes on with another, with a notice that names both; its snapshot is left aside."""
    snapshots = SnapshotStore(tmp_path / "snapshots")
    with ChatSession.new(start(), store, name="trip", snapshots=snapshots) as session:
        say(session, "one")
        session.save()
    with ChatSession.resume(start(name="other"), store, "trip", snapshots=snapshots) as session:
        notices = session.take_notices()
        assert any("scripted" in notice and "other" in notice for notice in notices)
        assert say(session, "two") == "echo two"
        assert session.last is not None
        assert session.last.cached_tokens == 0


def test_deleting_a_session_deletes_its_snapshots(start: Start, store: SessionStore, say: Say, tmp_path: Path) -> None:
    """Nothing of a deleted session stays on the disk, and nothing of another goes."""
    snapshots = SnapshotStore(tmp_path / "snapshots")
    engine = start()
    for name in ("one", "two"):
        with ChatSession.new(engine, store, name=name, snapshots=snapshots) as session:
            say(session, name)
            session.save()
    delete_session(store, snapshots, store.find("one").id)
    assert len(snapshots.names()) == 1
    assert [facts.name for facts in store.sessions()] == ["two"]


def test_a_store_that_fails_in_mid_reply_is_told_and_raised(start: Start, store: SessionStore) -> None:
    """A reply that cannot be saved is shown to its end; then the store's error comes out, and the text is kept."""
    with ChatSession.new(start(lambda text: "word " * 40, pause_s=0.005), store) as session:
        reply = session.send("go")
        reply.poll()
        store.close()
        with pytest.raises(SessionError):
            list(reply)
        assert reply.is_over
        assert session.path()[-1].text == "word " * 40
        assert any("cannot be saved" in notice for notice in session.take_notices())
        session.conversation.close()
        session._notices.clear()
        # The store is gone, so closing the session in it cannot work.
        session.store = SessionStore()


def test_a_reply_is_written_while_it_streams(start: Start, tmp_path: Path) -> None:
    """Another reader of the store sees a reply grow."""
    path = tmp_path / "chat.sqlite3"
    with SessionStore(path) as store, ChatSession.new(start(lambda text: "w" * 400, pause_s=0.005), store) as session:
        reply = session.send("go")
        until = time.monotonic() + 20
        with SessionStore(path) as reader:
            while not reader.load(session.facts.id).turns[reply.turn.id].text and time.monotonic() < until:
                reply.poll()
            turn = reader.load(session.facts.id).turns[reply.turn.id]
        assert not reply.is_over
        assert turn.text.startswith("w")
        assert turn.state is TurnState.PARTIAL
        reply.close()
