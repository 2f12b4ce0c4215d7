"""From a thought to a conversation, which begins where a node of the search stands, and from a question to a search."""

from __future__ import annotations

from dataclasses import replace

from pie_mlx.chat import ChatSession, TurnState
from pie_mlx.errors import UsageError
from pie_mlx.search.run import Run
from pie_mlx.search.tree import Node
from pie_mlx.tui.desk import Desk


def hand_over(desk: Desk, run: Run, node: Node) -> ChatSession:
    """Begin a conversation with the question, answered by the thoughts down to ``node``; its context shares their K/V.

    Raises:
        UsageError: there is no chat to go to, a reply runs, or nobody has written a thought yet.
        PieError: the chat cannot be opened, or the node has no thought.
    """
    thoughts = "\n".join(step.text for step in desk.story.tree.path(node.id) if step.text)
    if not thoughts:
        raise UsageError(
            "no thought has been written here to go on with", "go to a node below, or type in the chat (F2)"
        )
    chat = open_chat(desk)
    chat.check_idle()
    context = run.fork_to_chat(node.id)
    try:
        chat.begin_new()
        talk = chat.conversation
        message = talk.message(desk.story.tree.question, None)
        _message, turn, _kept = talk.add_exchange(message, chat.model, None)
        whole = replace(turn, text=thoughts, state=TurnState.COMPLETE, finish_reason="stop")
        chat.store.update_turn(whole)
        talk.tree.put(whole)
    except BaseException:
        context.close()
        raise
    talk.adopt(chat.branch, context)
    return chat


def check_search(desk: Desk) -> None:
    """Refuse to begin a search where that cannot be.

    Raises:
        UsageError: there is no model, or a search runs.
    """
    if desk.sources.open_search is None:
        raise UsageError("there is no model to search with here", "pie-mlx tui")
    if desk.is_steerable:
        raise UsageError("a search runs already", "wait for its end, or end it with S on the Tree screen")


def prepare_search(desk: Desk, question: str) -> Run:
    """Return a search that is not started yet, and tells the bridge of its events.

    Raises:
        PieError: it cannot be begun.
    """
    check_search(desk)
    assert desk.sources.open_search is not None, "it was just looked at"
    return desk.sources.open_search(question, desk.bridge.offer)


def begin_search(desk: Desk, run: Run) -> None:
    """Let a prepared search take the place of the one that is shown, and start it."""
    desk.bridge.forget_search()
    desk.story.begin(run.header())
    desk.alarms = [note for note in desk.alarms if not note.is_end]
    desk.run = run
    run.start()


def open_chat(desk: Desk) -> ChatSession:
    """Return the desk's conversation, opening it the first time.

    Raises:
        UsageError: the workbench was started without a model.
        PieError: the model cannot chat.
    """
    if desk.chat is None:
        if desk.sources.open_chat is None:
            raise UsageError("there is no model to talk with here", "pie-mlx tui")
        desk.chat = desk.sources.open_chat()
    return desk.chat
