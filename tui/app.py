"""The workbench: joins sources, bridge and screens; knows nothing of the command line."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.notifications import SeverityLevel
from textual.screen import Screen

from pie_mlx.chat.clipboard import osc52
from pie_mlx.errors import PieError
from pie_mlx.tui.alarms import AlarmNote, is_alarming, note_of
from pie_mlx.tui.bridge import Arrived, Bridge, describe
from pie_mlx.tui.desk import Desk, Sources
from pie_mlx.tui.handover import begin_search, prepare_search
from pie_mlx.tui.hangup import TERMINATED, leave_when_terminated, watch_terminal
from pie_mlx.tui.inks import PALETTES, themes
from pie_mlx.tui.screens.chat import ChatScreen
from pie_mlx.tui.screens.dialogs import Confirm
from pie_mlx.tui.screens.engine import EngineScreen
from pie_mlx.tui.screens.help import HelpScreen
from pie_mlx.tui.screens.page import Page, SearchAsked
from pie_mlx.tui.screens.report import ReportScreen
from pie_mlx.tui.screens.tree import TreeScreen
from pie_mlx.tui.tailing import start_reading
from pie_mlx.tui.widgets.frame.bars import KeyBar

SCREENS = ("chat", "tree", "engine")


class Workbench(App[None]):
    """Three screens over one desk."""

    CSS_PATH = "app.tcss"
    TITLE = "pie-mlx"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2", "go('chat')", "chat", show=False),
        Binding("f3", "go('tree')", "tree", show=False),
        Binding("f4", "go('engine')", "engine", show=False),
        Binding("1", "go('chat')", "chat", show=False),
        Binding("2", "go('tree')", "tree", show=False),
        Binding("3", "go('engine')", "engine", show=False),
        Binding("question_mark,f1", "help", "help", show=False),
        Binding("w", "alarms", "watchdog", show=False),
        Binding("t", "next_theme", "theme", show=False),
        Binding("ctrl+p", "command_palette", "palette", show=False),
        Binding("ctrl+s", "picture", "screenshot", show=False),
        Binding("q,ctrl+q", "leave", "quit", show=False),
        Binding("ctrl+c", "copy_or_leave", "copy what is selected, or quit", show=False),
        Binding("M", "mouse", "leave the mouse to the terminal, or take it", show=False),
    ]

    def __init__(self, desk: Desk, *, theme: str | None = None, start: str = "tree") -> None:
        """Show a desk; ``theme`` is one of ours or of Textual's."""
        # Without colours the terminal's own two are used, instead of opaque greys.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.desk = desk
        self._start = start
        self.has_mouse = True
        """Whether mouse events come here; else the terminal keeps them for its own selection."""
        self.reader: threading.Thread | None = None
        """Reads the trace; ends with it."""
        for each in themes():
            self.register_theme(each)
        self.theme = theme or "pie-dark"
        self.add_mode("chat", lambda: ChatScreen(desk))
        self.add_mode("tree", lambda: TreeScreen(desk))
        self.add_mode("engine", lambda: EngineScreen(desk))

    async def on_mount(self) -> None:
        """Open the bridge, show the first screen, and let the sources begin."""
        sources, bridge = self.desk.sources, self.desk.bridge
        if not self.is_headless:
            leave_when_terminated(lambda: self.exit(return_code=TERMINATED))
            watch_terminal(lambda: self.call_from_thread(self.exit, return_code=1))
        await self.switch_mode(self._start)
        bridge.open(self.post_message, sources.engine)
        if sources.run is not None:
            self.desk.story.header = sources.run.header()
            sources.run.start()
        elif sources.trace is not None:
            self.desk.story.path = sources.trace
            self.reader = start_reading(sources.trace, bridge, live=sources.live)
        if sources.remote is not None:
            sources.remote.start(bridge)

    def on_unmount(self) -> None:
        """Stop listening; a reply that still runs is kept as it is."""
        self.desk.bridge.close()
        if self.desk.chat is not None:
            self.desk.chat.close()
            self.desk.chat.store.close()

    # --- what arrives -----------------------------------------------------------------------

    def on_arrived(self, _message: Arrived) -> None:
        """Take a batch: into the desk, and onto the screen that is shown."""
        desk, batch = self.desk, self.desk.bridge.take()
        desk.gauges.feed(batch.engine, batch.readings, batch.pages)
        desk.story.header = batch.header or desk.story.header
        change = desk.story.feed(batch.search)
        desk.alarms = [note for note in desk.alarms if note.kind not in batch.cleared]
        for event in (*batch.engine, *batch.search):
            if is_alarming(event):
                self._alarm(note_of(event))
        for words in batch.faults:
            self.notify(words, title="cannot go on", severity="error", markup=False, timeout=30)
        for words in batch.notes:
            self.notify(words, markup=False)
        for page in self._pages():
            if batch.cleared:
                page.show_alarm()
            page.take(batch, change)

    def _pages(self) -> list[Page]:
        """Return the pages that were shown so far; hidden ones keep their own records up to date.

        One that is on its way has no widgets yet, and catches up as soon as it is shown; one that is being left has
        none any more.
        """
        shown = [screen for stack in self._screen_stacks.values() for screen in stack if isinstance(screen, Page)]
        return [page for page in shown if page.is_mounted and page.query(KeyBar)]

    def _alarm(self, note: AlarmNote) -> None:
        """Remember an alarm, and say it where it is new; a trace that is opened raises its old ones quietly."""
        if any(known.kind == note.kind and known.words == note.words for known in self.desk.alarms):
            return
        self.desk.alarms.append(note)
        for page in self._pages():
            page.show_alarm()
        if self.desk.sources.trace is None or self.desk.sources.live:
            severity: SeverityLevel = "error" if note.level == "failure" else "warning"
            self.notify(note.words, title=f"▲ {note.kind}", severity=severity, markup=False, timeout=8)

    # --- another search ---------------------------------------------------------------------

    def on_search_asked(self, message: SearchAsked) -> None:
        """Search a question, and go to the tree."""
        # Its trace is a file, and counting its prompt's tokens takes a moment: the screen must not wait.
        self.run_worker(self._search(message.question), exclusive=True, group="search")

    async def _search(self, question: str) -> None:
        """Prepare the search off the screen's thread, then show it."""
        try:
            run = await asyncio.to_thread(prepare_search, self.desk, question)
        except PieError as error:
            self.report(error)
            return
        begin_search(self.desk, run)
        for page in self._pages():
            if isinstance(page, TreeScreen):
                page.begin_anew()
        await self.action_go("tree")

    # --- keys -------------------------------------------------------------------------------

    async def action_go(self, mode: str) -> None:
        """Show another screen."""
        if self.current_mode != mode and not self._is_asking:
            await self.switch_mode(mode)

    @property
    def _is_asking(self) -> bool:
        """Whether a dialog is open."""
        return not isinstance(self.screen, Page)

    def action_help(self) -> None:
        """Show every key of this screen."""
        if not self._is_asking:
            _ = self.push_screen(HelpScreen(self.screen))

    def action_alarms(self) -> None:
        """Show the watchdog's alarms with their reports."""
        if not self._is_asking:
            _ = self.push_screen(ReportScreen(self.desk))

    def action_next_theme(self) -> None:
        """Go on to the next of our themes."""
        names = list(PALETTES)
        at = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(at + 1) % len(names)]

    def action_picture(self) -> None:
        """Write the screen as an SVG file into the working folder."""
        try:
            path = self.save_screenshot()
        except OSError as error:
            self.notify(f"cannot be written: {error.strerror}", severity="error", markup=False)
            return
        self.notify(f"written: {path}", markup=False)

    def action_leave(self) -> None:
        """Leave; a run that would be cancelled is asked about first."""
        if not self.desk.is_steerable:
            self.exit()
            return
        question = "Leave and cancel the run? What it wrote stays in its trace: tot view shows it."

        def decide(answer: object) -> None:
            if answer is True and self.desk.run is not None:
                self.desk.run.cancel()
                self.exit()

        if not self._is_asking:
            _ = self.push_screen(Confirm("leave", question, yes="leave"), decide)

    def action_copy_or_leave(self) -> None:
        """Copy what is selected; leave where nothing is."""
        selected = self.screen.get_selected_text()
        if not selected:
            self.action_leave()
            return
        self.copy_to_clipboard(selected)
        self.screen.clear_selection()
        self.notify(f"copied {len(selected):,} characters", markup=False, timeout=2)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy by OSC 52, which works over SSH too, and by the system's own command, which Terminal.app needs."""
        if osc52(text) is not None:
            super().copy_to_clipboard(text)
        tool = shutil.which("pbcopy")
        if tool is not None:
            subprocess.run([tool], input=text.encode("utf-8", "replace"), check=False, timeout=5)
        elif osc52(text) is None:
            words = f"{len(text):,} characters are more than terminals copy"
            self.notify(words, severity="warning", markup=False)

    def action_mouse(self, wanted: str = "") -> None:
        """Take the mouse (``on``), leave it to the terminal (``off``), or the other of the two."""
        self.take_mouse(take=wanted == "on" if wanted else not self.has_mouse)

    def take_mouse(self, *, take: bool) -> None:
        """Take mouse events, or leave them to the terminal: then it selects text and scrolls as it does elsewhere."""
        self.has_mouse = take
        driver = self._driver
        if driver is not None and not self.is_headless:
            # The reports of clicks, of moves, and their form; the driver turns the same ones off at the end.
            driver.write("".join(f"\x1b[?{mode}{'h' if take else 'l'}" for mode in (1000, 1003, 1015, 1006)))
            driver.flush()
        words = "the workbench has the mouse" if take else "the terminal has the mouse; M or /mouse on takes it back"
        self.notify(words, markup=False, timeout=4)

    async def action_quit(self) -> None:
        """Leave as ``q`` does: the palette's quit asks too."""
        self.action_leave()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer what the keys do, by name."""
        yield SystemCommand("Chat", "talk with the model", lambda: self.call_later(self.action_go, "chat"))
        yield SystemCommand("Tree", "watch and steer the search", lambda: self.call_later(self.action_go, "tree"))
        yield SystemCommand("Engine", "pages, contexts, requests", lambda: self.call_later(self.action_go, "engine"))
        yield SystemCommand("Alarms", "who waits for what, and what helps", self.action_alarms)
        yield SystemCommand("Help", "every key of this screen", self.action_help)
        for name in PALETTES:
            yield SystemCommand(f"Theme {name}", "colours", self._theme_setter(name))
        yield SystemCommand("Mouse on or off", "leave it to the terminal, or take it", self.action_mouse)
        yield SystemCommand("Screenshot", "write the screen as an SVG file", self.action_picture)
        for active in screen.active_bindings.values():
            binding = active.binding
            if active.enabled and active.node is screen and binding.description:
                yield SystemCommand(
                    binding.description.capitalize(), f"key {binding.key}", self._runner(binding.action, screen)
                )
        yield SystemCommand("Quit", "leave the workbench", self.action_leave)

    def _theme_setter(self, name: str) -> Callable[[], None]:
        """Return what sets a theme."""

        def choose() -> None:
            self.theme = name

        return choose

    def _runner(self, action: str, screen: Screen[object]) -> Callable[[], None]:
        """Return what runs a screen's action."""

        def run() -> None:
            self.call_later(self.run_action, action, screen)

        return run

    def report(self, error: PieError) -> None:
        """Say an error."""
        self.notify(describe(error), severity="error", markup=False, timeout=8)


def make_app(
    sources: Sources, *, bridge: Bridge | None = None, theme: str | None = None, start: str | None = None
) -> Workbench:
    """Return the workbench over ``sources``; nothing is opened before it runs.

    ``bridge`` is needed where a run already reports to it. ``start`` is ``chat``, ``tree`` or ``engine``; without it,
    the tree where there is one to show, else the engine.
    """
    has_tree = sources.run is not None or sources.trace is not None
    has_engine = sources.engine is not None or sources.remote is not None
    first = start or ("tree" if has_tree or not has_engine else "engine")
    assert first in SCREENS, f"a screen is one of {SCREENS}"
    return Workbench(Desk(sources, bridge or Bridge()), theme=theme, start=first)
