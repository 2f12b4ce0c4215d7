"""Going back and forth in a run: one event, a whole jump, or playing at a speed."""

from __future__ import annotations

from textual.timer import Timer

from pie_mlx.tui.desk import Desk
from pie_mlx.tui.screens.page import Page
from pie_mlx.tui.story import NS_PER_S, Change

FRAME_S = 0.1
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
_LONGEST_GAP_S = 1.0
"""Playing waits no longer than this for the next event, whatever the run did."""


class Replaying(Page):
    """The part of the tree screen that moves in time; a timer lives only while it plays."""

    def __init__(self, desk: Desk) -> None:
        """Start at the present."""
        super().__init__(desk)
        self.speed = 1.0
        self._timer: Timer | None = None
        self._now_ns = 0

    def show_change(self, change: Change) -> None:
        """Show what a move changed; the screen says how."""
        raise NotImplementedError

    def show_state(self) -> None:
        """Say how it stands; the screen says where."""
        raise NotImplementedError

    @property
    def is_playing(self) -> bool:
        """Whether the past is being played."""
        return self._timer is not None

    def action_back(self, events: int) -> None:
        """Go back by events; below 0 forward."""
        self.stop_playing()
        self.seek(self.desk.story.position - events)

    def action_jump(self, share: float) -> None:
        """Go to a share of the run: 0 is the beginning, 1 the present."""
        self.stop_playing()
        self.seek(round(len(self.desk.story.events) * share))

    def action_speed(self, step: int) -> None:
        """Play faster or slower."""
        at = SPEEDS.index(self.speed) + step
        self.speed = SPEEDS[max(0, min(at, len(SPEEDS) - 1))]
        self.notify(f"{self.speed:g}× speed", markup=False, timeout=2)
        self.show_state()

    def seek(self, position: int) -> None:
        """Show the run after ``position`` events."""
        self.show_change(self.desk.story.seek(position))

    def toggle_playing(self) -> None:
        """Play from here, or stop; at the end, from the beginning."""
        if self.is_playing:
            self.stop_playing()
            self.show_state()
            return
        story = self.desk.story
        if story.at_end:
            self.seek(0)
        self._now_ns = story.t_ns
        self._timer = self.set_interval(FRAME_S, self.play_on)
        self.show_state()

    def stop_playing(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def play_on(self) -> None:
        """Go on by one frame of the run's own time."""
        story = self.desk.story
        self._now_ns += round(FRAME_S * self.speed * NS_PER_S)
        if story.position < len(story.events):
            soonest = story.events[story.position].t_ns - round(_LONGEST_GAP_S * self.speed * NS_PER_S)
            self._now_ns = max(self._now_ns, soonest)
        self.seek(story.position_at(self._now_ns))
        if story.at_end:
            self.stop_playing()
            self.show_state()
