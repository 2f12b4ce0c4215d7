"""Snapshots of a session's branch: its K/V on disk, so that resuming computes nothing that was computed before."""

from __future__ import annotations

from pie_mlx.chat.conversation import Conversation
from pie_mlx.chat.store import SessionId, SessionStore
from pie_mlx.errors import SnapshotError
from pie_mlx.kv.snapshot import SnapshotFacts, SnapshotStore


def _prefix(session: SessionId) -> str:
    """Return how the names of a session's snapshots begin."""
    return f"chat-{session}-"


def save_branch(conversation: Conversation, snapshots: SnapshotStore) -> SnapshotFacts | None:
    """Save the current branch's context under its last turn, replacing the session's older snapshots.

    None: the branch has no context yet, so there is nothing to save.

    Raises:
        SnapshotError: it could not be written; the older ones are still there.
    """
    tree = conversation.tree
    context = conversation.open_context(tree.current)
    if context is None or tree.tip is None:
        return None
    name = f"{_prefix(conversation.session)}{tree.tip}"
    facts = context.save(name, snapshots)
    for other in _names(conversation.session, snapshots):
        if other != name:
            snapshots.remove(other)
    return facts


def restore_branch(conversation: Conversation, snapshots: SnapshotStore) -> list[str]:
    """Open the current branch's context from the snapshot nearest to its tip; return what the user should know.

    A snapshot only saves time, so one that cannot be used is told and left aside.
    """
    names = _names(conversation.session, snapshots)
    tree = conversation.tree
    for turn in reversed(tree.current_path()):
        name = f"{_prefix(conversation.session)}{turn.id}"
        if name not in names:
            continue
        try:
            context, restored = conversation.engine.open_context(name, snapshots)
        except SnapshotError as error:
            return [f"the saved context cannot be used, so the conversation is read anew: {error.message}"]
        conversation.adopt(tree.current, context)
        ready = restored.resident_tokens + restored.loaded_tokens
        return [f"{ready:,} tokens are ready from the saved context"]
    return []


def delete_session(store: SessionStore, snapshots: SnapshotStore, session: SessionId) -> None:
    """Delete a session and its snapshots.

    Raises:
        SessionNotFound: it was deleted before.
    """
    store.delete(session)
    for name in _names(session, snapshots):
        snapshots.remove(name)


def _names(session: SessionId, snapshots: SnapshotStore) -> list[str]:
    """Return the names of a session's snapshots."""
    return [name for name in snapshots.names() if name.startswith(_prefix(session))]
