"""The session store keeps every turn, whoever writes and however they end."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from pie_mlx.chat.errors import (
    SessionCorrupt,
    SessionError,
    SessionExists,
    SessionNotFound,
    SessionVersion,
)
from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.store import NEW, SessionFacts, SessionStore, default_path
from pie_mlx.chat.turns import Turn, TurnId, TurnState
from pie_mlx.errors import InvalidParameter, PieError


def _say(store: SessionStore, facts: SessionFacts, text: str, reply: str, parent: TurnId | None = None) -> Turn:
    """Write an exchange whose reply is complete, and move main there."""
    message, answer = store.add_exchange(facts.id, Turn(NEW, parent, "user", text), "m")
    done = Turn(answer.id, message.id, "assistant", reply, finish_reason="stop", model="m")
    store.update_turn(done)
    assert store.move_branch(facts.id, "main", seen=parent, tip=done.id)
    return done


def test_turns_come_back_as_they_were_written(tmp_path: Path) -> None:
    """A second opening of the file reads the same tree."""
    path = tmp_path / "deep" / "chat.sqlite3"
    with SessionStore(path) as store:
        facts = store.create(model="m", system="sys", settings=ChatSettings(temperature=0.5), name="mine")
        done = _say(store, facts, "héllo 👋\x1b[2J", "wörld")
    with SessionStore(path) as store:
        facts = store.find("mine")
        assert (facts.system, facts.settings.temperature, facts.num_turns) == ("sys", 0.5, 2)
        tree = store.load(facts.id)
        assert [turn.text for turn in tree.current_path()] == ["héllo 👋\x1b[2J", "wörld"]
        assert tree.tip == done.id


def test_a_streaming_reply_is_partial_when_it_is_read(tmp_path: Path) -> None:
    """What a crash left in the middle is kept, and marked."""
    path = tmp_path / "chat.sqlite3"
    store = SessionStore(path)
    facts = store.create(model="m")
    message, reply = store.add_exchange(facts.id, Turn(NEW, None, "user", "hi"), "m")
    store.update_turn(Turn(reply.id, message.id, "assistant", "half a", state=TurnState.STREAMING, model="m"))
    store.move_branch(facts.id, "main", seen=None, tip=reply.id)
    with SessionStore(path) as other:
        turn = other.load(facts.id).turns[reply.id]
    assert (turn.state, turn.text, turn.finish_reason) == (TurnState.PARTIAL, "half a", "interrupted")
    store.close()


def test_sessions_without_a_turn_are_not_listed_and_vanish() -> None:
    """Opening a chat and leaving it leaves nothing behind; one with turns stays."""
    with SessionStore() as store:
        empty, used = store.create(model="m"), store.create(model="m")
        _say(store, used, "a", "b")
        assert [facts.name for facts in store.sessions()] == [used.name]
        assert store.drop_if_empty(empty.id)
        assert not store.drop_if_empty(used.id)


def test_the_last_used_session_comes_first() -> None:
    """Lists are in the order of use, not of creation."""
    with SessionStore() as store:
        first, second = store.create(model="m"), store.create(model="m")
        _say(store, first, "a", "b")
        _say(store, second, "a", "b")
        tip = store.load(first.id).tip
        _say(store, first, "again", "b", tip)
        assert [facts.id for facts in store.sessions()] == [first.id, second.id]
        assert [facts.id for facts in store.sessions(limit=1)] == [first.id]


def test_names_are_unique_and_the_nearest_is_offered() -> None:
    """A taken name is refused, a wrong one meets a suggestion, and chat-N avoids what a user took."""
    with SessionStore() as store:
        facts = store.create(model="m", name="holiday plans")
        assert store.create(model="m").name == "chat-2"
        with pytest.raises(SessionExists):
            store.create(model="m", name=" holiday plans ")
        with pytest.raises(SessionNotFound) as caught:
            store.find("holidy plans")
        assert caught.value.hint == "did you mean 'holiday plans'?"
        store.rename(facts.id, "chat-4")
        store.create(model="m")
        assert store.create(model="m").name == "chat-5"
        store.rename(facts.id, "chat-4")
        with pytest.raises(SessionExists):
            store.rename(facts.id, "chat-5")


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "\x1b[2J", "x" * 81])
def test_a_name_must_be_printable(name: str) -> None:
    """A name ends up in a terminal and in file names."""
    with SessionStore() as store, pytest.raises(InvalidParameter):
        store.create(model="m", name=name)


def test_deleting_takes_turns_branches_and_index_along() -> None:
    """Nothing of a deleted session is found any more, however long it was."""
    with SessionStore() as store:
        facts = store.create(model="m")
        tip = None
        for number in range(1100):
            tip = _say(store, facts, f"needle {number}", "hay", tip).id
        store.delete(facts.id)
        assert store.search("needle") == []
        with pytest.raises(SessionNotFound):
            store.load(facts.id)
        with pytest.raises(SessionNotFound):
            store.delete(facts.id)
        with pytest.raises(SessionNotFound):
            store.add_exchange(facts.id, Turn(NEW, None, "user", "hi"), "m")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("brown fox", True),
        ("fox brown", True),
        ("bro", True),
        ("fox NOT brown", False),
        ('"', False),
        ("AND", False),
        ("*", False),
        ("好", True),
        ("dogs'", False),
        ("100%", False),
        ("_", False),
    ],
)
def test_search_takes_words_literally(text: str, *, found: bool) -> None:
    """Words may come in any order and be begun only; nothing is an operator; scripts without spaces are found."""
    with SessionStore() as store:
        facts = store.create(model="m")
        _say(store, facts, "the quick brown fox, 你好世界", "ok")
        assert bool(store.search(text)) is found


def test_search_needs_a_word() -> None:
    """An empty search is refused instead of finding everything."""
    with SessionStore() as store, pytest.raises(InvalidParameter):
        store.search("  ")


def test_search_follows_a_reply_as_it_grows() -> None:
    """The index holds the latest text, not an earlier one."""
    with SessionStore() as store:
        facts = store.create(model="m")
        done = _say(store, facts, "q", "alpha")
        store.update_turn(Turn(done.id, done.parent, "assistant", "beta", model="m"))
        assert store.search("alpha") == []
        assert [match.text for match in store.search("beta")] == ["beta"]


def test_a_branch_moves_only_from_where_it_was_seen() -> None:
    """Of two owners who move a branch at once, the second one learns of it."""
    with SessionStore() as store:
        facts = store.create(model="m")
        done = _say(store, facts, "a", "b")
        assert not store.move_branch(facts.id, "main", seen=None, tip=None)
        assert store.move_branch(facts.id, "main", seen=done.id, tip=None)
        assert store.add_branch(facts.id, "x", done.id)
        assert not store.add_branch(facts.id, "x", None)
        assert store.load(facts.id).branches == {"main": None, "x": done.id}


def test_two_openings_write_at_the_same_time(tmp_path: Path) -> None:
    """Writers on two connections take turns; both sessions are whole and the file passes SQLite's check."""
    from threading import Thread

    path = tmp_path / "chat.sqlite3"
    failures: list[PieError] = []

    def write() -> None:
        try:
            with SessionStore(path) as store:
                facts = store.create(model="m")
                tip = None
                for number in range(20):
                    tip = _say(store, facts, f"{number}", "r", tip).id
        except PieError as error:
            failures.append(error)

    threads = [Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with SessionStore(path) as store:
        assert [facts.num_turns for facts in store.sessions()] == [40, 40, 40]
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_a_damaged_file_is_a_typed_error(tmp_path: Path) -> None:
    """A file that is no database is named, and left as it is."""
    path = tmp_path / "chat.sqlite3"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(SessionCorrupt, match="not a database"):
        SessionStore(path)
    assert path.read_bytes().startswith(b"this is not")


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    """No table is put into somebody else's file."""
    path = tmp_path / "chat.sqlite3"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.commit()
    foreign.close()
    with pytest.raises(SessionCorrupt, match="not one of pie-mlx"):
        SessionStore(path)


def test_a_newer_form_is_refused(tmp_path: Path) -> None:
    """A store of a later version is not touched; the error names both forms."""
    path = tmp_path / "chat.sqlite3"
    SessionStore(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.commit()
    newer.close()
    with pytest.raises(SessionVersion, match="form 99"):
        SessionStore(path)


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    """A state folder under a file gives an error that names the path."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(SessionError, match="cannot be opened"):
        SessionStore(tmp_path / "file" / "chat.sqlite3")


def test_the_state_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIE_MLX_STATE_DIR decides where the file lies."""
    monkeypatch.setenv("PIE_MLX_STATE_DIR", str(tmp_path / "elsewhere"))
    assert default_path() == tmp_path / "elsewhere" / "chat.sqlite3"


def test_a_stray_surrogate_does_not_stop_the_chat() -> None:
    """Bytes that a locale could not read arrive as surrogates; they are stored as question marks."""
    with SessionStore() as store:
        facts = store.create(model="m")
        message, _ = store.add_exchange(facts.id, Turn(NEW, None, "user", "caf\udce9"), "m")
        assert store.load(facts.id).turns[message.id].text == "caf?"


def test_other_users_cannot_read_the_conversations(tmp_path: Path) -> None:
    """Conversations are private: the file is the owner's alone."""
    path = tmp_path / "chat.sqlite3"
    SessionStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
