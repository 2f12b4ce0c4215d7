"""What each slash command does to a session."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from pie_mlx.chat.attachments import read_attachment
from pie_mlx.chat.clipboard import osc52
from pie_mlx.chat.drawing import draw_tree, preview_of
from pie_mlx.chat.export import to_json, to_markdown
from pie_mlx.chat.results import Copied, EditPrompt, Exported, Generating, Leave, Moved, Result, Said, TreeDrawn
from pie_mlx.chat.session import ChatSession
from pie_mlx.chat.settings import about_setting, setting_name, setting_names
from pie_mlx.chat.status import read_status
from pie_mlx.errors import UsageError

_CODE = re.compile(r"^(`{3,}|~{3,})[^\n`]*\n(.*?)^\1[`~]*\s*$", re.DOTALL | re.MULTILINE)
_MAX_ROWS = 20


def _refuse_argument(argument: str, name: str) -> None:
    """Refuse what stands behind a command that takes nothing.

    Raises:
        UsageError: something does.
    """
    if argument:
        raise UsageError(f"/{name} takes no argument, but got {argument!r}", f"/{name}")


def new(session: ChatSession, argument: str) -> Result:
    """Begin a new conversation."""
    session.begin_new(argument or None)
    return Said(f"new conversation {session.facts.name}")


def system(session: ChatSession, argument: str) -> Result:
    """Show, set or take away the system text."""
    if not argument:
        return Said(session.system or "there is no system text")
    session.change(system="" if argument == "-" else argument)
    anew = "; the conversation is read anew with the next message" if session.path() else ""
    return Said(("the system text is gone" if session.system is None else "the system text is set") + anew)


def model(session: ChatSession, argument: str) -> Result:
    """Show the model, or go on with another."""
    if argument:
        session.change_model(argument)
    facts = session.engine.facts
    return Said(f"{facts.model}: context {facts.context_tokens:,} tokens, {facts.num_layers} layers, on {facts.device}")


def search(session: ChatSession, argument: str) -> Result:
    """Say which command searches where there is no tree to watch; the workbench searches by itself."""
    question = question_of(session, argument)
    return Said(f"pie-mlx tot run {shlex.quote(question)} searches it (the workbench does so from its chat)")


def question_of(session: ChatSession, argument: str) -> str:
    """Return what is to be searched: what was typed, else the last message.

    Raises:
        UsageError: there is neither.
    """
    last = next((turn.text for turn in reversed(session.path()) if turn.role == "user"), "")
    if not (argument or last):
        raise UsageError("there is no question yet", "/search QUESTION")
    return argument or last


def mouse(_session: ChatSession, _argument: str) -> Result:
    """Say who has the mouse where nothing takes it from the terminal; the workbench answers for itself."""
    return Said("the terminal has the mouse here: select and copy as everywhere (the workbench takes it)")


def change_setting(session: ChatSession, argument: str) -> Result:
    """Show the settings, or change one: ``temperature 0.7``, also ``temperature=0.7``."""
    if not argument:
        names = setting_names()
        width = max(map(len, names))
        return Said("\n".join(f"{name:<{width}}  {_value(session, name):<8} {about_setting(name)}" for name in names))
    name, *rest = re.split(r"[\s=]+", argument, maxsplit=1)
    if rest and rest[0]:
        session.change(settings=session.settings.changed(name, rest[0]))
    key = setting_name(name)
    return Said(f"{key} is {_value(session, key)}")


def _value(session: ChatSession, name: str) -> str:
    """Return a setting's value as text."""
    value = getattr(session.settings, name)
    return "random" if value is None else str(value)


def fork(session: ChatSession, argument: str) -> Result:
    """Make a branch here and go on in it."""
    session.check_idle()
    name = session.conversation.fork(argument or None)
    return Moved(name, f"branch {name} begins here")


def switch(session: ChatSession, argument: str) -> Result:
    """Go to another branch, or list them."""
    session.check_idle()
    tree = session.conversation.tree
    if not argument:
        counts = ((name, len(tree.path(tip)) // 2) for name, tip in tree.branches.items())
        return Said(
            "\n".join(f"{'●' if name == tree.current else '○'} {name} ({turns} turns)" for name, turns in counts)
        )
    name = session.conversation.switch(argument)
    path = session.path()
    last = preview_of(path[-1].text, 80) if path else "before the first message"
    return Moved(name, f"on branch {name}: {last}")


def tree(session: ChatSession, argument: str) -> Result:
    """Draw the tree."""
    _refuse_argument(argument, "tree")
    lines = draw_tree(session.conversation.tree)
    return TreeDrawn(tuple(lines)) if lines else Said("the conversation has no turn yet")


def undo(session: ChatSession, argument: str) -> Result:
    """Go back before the last message."""
    _refuse_argument(argument, "undo")
    message, kept = session.undo()
    where = f"; it is kept as branch {kept} (/switch {kept})" if kept else ""
    return Moved(session.branch, f"took back {preview_of(message.text, 60)!r}{where}")


def retry(session: ChatSession, argument: str) -> Result:
    """Generate the last reply again."""
    _refuse_argument(argument, "retry")
    return Generating(session.retry())


def edit(session: ChatSession, argument: str) -> Result:
    """Say the last message in another way; without text, offer the old one for editing."""
    if argument:
        return Generating(session.edit(argument))
    session.check_idle()
    return EditPrompt(session.conversation.tree.last_exchange()[0].text)


def save(session: ChatSession, argument: str) -> Result:
    """Name the session, and save its context."""
    session.check_idle()
    if argument:
        session.rename(argument)
    facts = session.save()
    if facts is None:
        return Said(f"session {session.facts.name}; no context to save yet")
    size = facts.num_bytes / 1e6
    return Said(f"session {session.facts.name}: {facts.num_resident:,} tokens of context saved ({size:.1f} MB)")


def load(session: ChatSession, argument: str) -> Result:
    """Continue a saved session, or list them."""
    if not argument:
        found = session.store.sessions(limit=_MAX_ROWS)
        rows = [f"{facts.name}  {facts.num_turns // 2} turns, {facts.model}  {facts.title}" for facts in found]
        return Said("\n".join(rows) or "there is no saved session yet")
    session.load(argument)
    return Moved(session.branch, f"session {session.facts.name}, branch {session.branch}")


def export(session: ChatSession, argument: str) -> Result:
    """Write the session to a file that does not exist yet."""
    session.check_idle()
    form, _, rest = argument.partition(" ")
    if form.lower() not in ("md", "json", "markdown"):
        form, rest = ("json" if argument.lower().endswith(".json") else "md"), argument
    suffix = "json" if form.lower() == "json" else "md"
    facts, turns = session.store.facts(session.facts.id), session.conversation.tree
    plain = re.sub(r"[^\w.-]+", "-", facts.name).strip("-.") or "chat"
    path = _path(rest) if rest.strip() else Path(f"{plain}.{suffix}")
    content = (to_json if suffix == "json" else to_markdown)(facts, turns).encode()
    try:
        # "x" never overwrites a file, not even one that appears meanwhile.
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise UsageError(f"{path} exists already", "name another file: /export md FILE") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "name another file") from error
    return Exported(path, len(content))


def attach(session: ChatSession, argument: str) -> Result:
    """Attach a file to the next message, list what is attached, or take it off again."""
    if argument == "-":
        session.attachments.clear()
        return Said("no file is attached")
    if argument:
        session.attachments.append(read_attachment(_path(argument)))
    count = [f"{item.name} ({len(session.tokenizer.encode(item.text)):,} tokens)" for item in session.attachments]
    if not count:
        return Said("no file is attached; /file PATH attaches one to the next message")
    return Said(f"with the next message: {', '.join(count)}")


def _path(text: str) -> Path:
    """Read a path as it was typed: backslashes are kept, quotes around the whole (dragged files have them) are not."""
    text = text.strip()
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 1:
        text = text[1:-1]
    path = Path(text).expanduser()
    if not path.exists() and "\\" in text and os.sep == "/":
        # A terminal escapes the spaces of a dragged file.
        try:
            words = shlex.split(text)
        except ValueError:
            return path
        if len(words) == 1 and Path(words[0]).exists():
            return Path(words[0])
    return path


def stats(session: ChatSession, argument: str) -> Result:
    """Show the last reply's figures."""
    _refuse_argument(argument, "stats")
    last = session.last
    if last is None:
        return Said(read_status(session).line())
    speed = "" if last.decode_tps is None else f", {last.decode_tps:.1f} tok/s"
    first = "none" if last.ttft_s is None else f"{1000 * last.ttft_s:,.0f} ms"
    lines = [
        read_status(session).line(),
        f"prompt      {last.prompt_tokens:,} tokens: {last.cached_tokens:,} there, {last.prefilled_tokens:,} computed",
        f"reply       {last.completion_tokens:,} tokens in {last.wall_s:.2f} s{speed}; first after {first}",
        f"ended by    {last.finish_reason}",
    ]
    if last.num_preemptions:
        lines.append(f"preempted   {last.num_preemptions} times")
    return Said("\n".join(lines))


def pages(session: ChatSession, argument: str) -> Result:
    """Show who holds the pages of the pool."""
    _refuse_argument(argument, "pages")
    readings = session.engine.readings()
    counts = readings.pages
    kinds = f"{counts.private:,} private, {counts.shared:,} shared, {counts.cached:,} cached"
    lines = [f"{counts.held:,} of {counts.total:,} pages held: {kinds}; {counts.sharing_ratio:.2f} views a page"]
    largest = sorted(readings.contexts, key=lambda context: -context.num_pages)
    names = [context.name or f"context {context.id}" for context in largest[:_MAX_ROWS]]
    width = max(map(len, names), default=0)
    lines += [
        f"{name:{width}}  {context.num_pages:>6,} pages ({context.num_private:,} private), "
        f"{context.num_resident:,}/{context.num_tokens:,} tokens"
        for name, context in zip(names, largest, strict=False)
    ]
    if len(largest) > _MAX_ROWS:
        lines.append(f"and {len(largest) - _MAX_ROWS} more")
    return Said("\n".join(lines))


def copy(session: ChatSession, argument: str) -> Result:
    """Copy the last reply, or its last code block."""
    if argument not in ("", "code"):
        raise UsageError(f"/copy takes nothing or 'code', but got {argument!r}", "/copy, or /copy code")
    text = session.conversation.tree.last_exchange()[1].text
    if argument == "code":
        blocks = _CODE.findall(text)
        if not blocks:
            raise UsageError("the last reply has no code block", "/copy copies all of it")
        text = blocks[-1][1]
    if not text:
        raise UsageError("the last reply is empty", "/retry generates it again")
    return Copied(text, osc52(text))


def leave(_session: ChatSession, argument: str) -> Result:
    """Leave."""
    _refuse_argument(argument, "quit")
    return Leave()
