"""All slash commands, once, for every front end: parse a line, complete it, describe it, run it against a session.

Nothing here writes to a terminal. Running a command returns what happened as a typed result, or raises a typed error;
the front end shows either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from pie_mlx.chat import actions
from pie_mlx.chat.results import Result, Said
from pie_mlx.chat.session import ChatSession
from pie_mlx.chat.settings import setting_choices, setting_names
from pie_mlx.errors import UsageError

_SLASH = re.compile(r"/([A-Za-z][\w-]*)(?:\s+|$)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Message:
    """A line that is no command: something to say."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A command and what stands behind it, without outer spaces."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to complete a line: ``text`` replaces the last ``replaces`` characters before the cursor."""

    text: str
    replaces: int
    about: str = ""


Values = Callable[[ChatSession], Iterable[tuple[str, str]]]
"""What an argument may be, each with a few words about it."""


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    usage: str
    """Its arguments, as help shows them."""
    about: str
    run: Callable[[ChatSession, str], Result]
    values: Values | None = None
    aliases: tuple[str, ...] = ()


def _branches(session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer the branches."""
    tree = session.conversation.tree
    return [(name, "here" if name == tree.current else "branch") for name in tree.branches]


def _settings(session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer the settings, and the words that each may be."""
    found = [(name, str(getattr(session.settings, name))) for name in setting_names()]
    return found + [(f"{name} {choice}", "") for name in setting_names() for choice in setting_choices(name)]


def _sessions(session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer the saved sessions."""
    return [(facts.name, facts.title) for facts in session.store.sessions(limit=50)]


def _formats(_session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer the forms of an export."""
    return [("md", "Markdown"), ("json", "JSON with every branch")]


def _no_system(_session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer to take the system text away."""
    return [("-", "no system text")]


def _what_to_copy(_session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer what can be copied besides the whole reply."""
    return [("code", "the last code block")]


def _on_off(_session: ChatSession) -> Iterable[tuple[str, str]]:
    """Offer a switch's positions."""
    return [("on", "the workbench takes it"), ("off", "the terminal selects text by itself")]


def _help(_session: ChatSession, argument: str) -> Said:
    """Describe one command, or all."""
    if argument:
        return Said(describe(find_command(argument.removeprefix("/"))))
    width = max(len(f"/{command.name} {command.usage}") for command in COMMANDS)
    lines = [f"{f'/{command.name} {command.usage}':<{width}}  {command.about}" for command in COMMANDS]
    return Said("\n".join([*lines, "", "//text sends a message that begins with a slash"]))


COMMANDS: tuple[Command, ...] = (
    Command("help", "[COMMAND]", "show the commands", _help, lambda _: [(c.name, c.about) for c in COMMANDS], ("?",)),
    Command("new", "[NAME]", "begin a new conversation; this one stays saved", actions.new),
    Command("system", "[TEXT | -]", "show, set or take away the system text", actions.system, _no_system),
    Command("model", "[NAME]", "show the model, or go on with another", actions.model),
    Command("set", "[NAME VALUE]", "show the settings, or change one", actions.change_setting, _settings),
    Command("fork", "[NAME]", "make a branch here and go on in it; copies nothing", actions.fork),
    Command("switch", "[BRANCH]", "go to another branch", actions.switch, _branches),
    Command("tree", "", "draw the conversation with all branches", actions.tree),
    Command("undo", "", "go back before the last message; it stays on a branch", actions.undo),
    Command("retry", "", "generate the last reply again; the old one stays on a branch", actions.retry),
    Command("edit", "[TEXT]", "say the last message in another way; the old one stays on a branch", actions.edit),
    Command("save", "[NAME]", "name the session, and save its context for an instant resume", actions.save),
    Command("load", "[SESSION]", "continue a saved session", actions.load, _sessions),
    Command("export", "[md|json] [FILE]", "write the session with its branches to a file", actions.export, _formats),
    Command("file", "[PATH | -]", "attach a text file to the next message", actions.attach),
    Command("stats", "", "show the last reply's figures", actions.stats),
    Command("pages", "", "show who holds the pages of the pool", actions.pages),
    Command("copy", "[code]", "copy the last reply, or its last code block", actions.copy, _what_to_copy),
    Command("search", "[QUESTION]", "in the workbench: search a tree of thoughts for an answer", actions.search),
    Command("mouse", "[on|off]", "in the workbench: take the mouse, or leave it", actions.mouse, _on_off),
    Command("quit", "", "leave; the conversation is saved", actions.leave, None, ("exit", "bye", "q")),
)
"""Every command, in the order of help."""


def parse(line: str) -> Message | Call:
    """Tell a message from a command. ``//text`` is the message ``/text``; a slash before no letter is a message.

    A path such as ``/etc/hosts`` at the beginning is a message too: no command has a slash in its name.
    """
    if line.startswith("//"):
        return Message(line[1:])
    found = _SLASH.match(line) or re.match(r"/(\?)(?:\s+|$)", line)
    if found is None:
        return Message(line)
    return Call(found[1].lower(), line[found.end() :].strip())


def find_command(name: str) -> Command:
    """Return the command called ``name``.

    Raises:
        UsageError: there is none; offers the nearest, and how to say it as a message.
    """
    wanted = name.lower()
    for command in COMMANDS:
        if wanted == command.name or wanted in command.aliases:
            return command
    names = [command.name for command in COMMANDS]
    near = get_close_matches(wanted, names, n=1, cutoff=0.5) or [other for other in names if other.startswith(wanted)]
    hint = f"did you mean /{near[0]}?" if near else "/help shows all commands"
    raise UsageError(f"there is no command /{name}", f"{hint} To send it as a message, type //{name}")


def describe(command: Command) -> str:
    """Return a command's usage and purpose."""
    aliases = f" (also {', '.join('/' + alias for alias in command.aliases)})" if command.aliases else ""
    return f"/{command.name} {command.usage}".rstrip() + f": {command.about}{aliases}"


def run(session: ChatSession, call: Call) -> Result:
    """Run a command.

    Raises:
        UsageError: there is no such command, or its argument has no meaning here.
        PieError: whatever the action raised; the session is then as it was.
    """
    return find_command(call.name).run(session, call.argument)


def complete(session: ChatSession, line: str) -> list[Suggestion]:
    """Return the ways to complete ``line`` (the text before the cursor): command names, then their arguments."""
    if not line.startswith("/") or line.startswith("//") or "\n" in line:
        return []
    name, space, argument = line[1:].partition(" ")
    if not space:
        found = [command for command in COMMANDS if command.name.startswith(name.lower())]
        return [Suggestion(f"/{command.name}", len(line), command.about) for command in found]
    command = next((item for item in COMMANDS if item.name == name.lower()), None)
    if command is None or command.values is None:
        return []
    typed = argument.lstrip()
    return [
        Suggestion(value, len(typed), about)
        for value, about in command.values(session)
        if value.startswith(typed) and value != typed
    ]
