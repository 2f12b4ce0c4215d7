"""Themes, and the inks that line-drawn widgets write with: roles to Rich styles, one set a theme."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style
from textual.theme import Theme


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme, as ``#rrggbb``."""

    name: str
    dark: bool
    background: str
    surface: str
    panel: str
    text: str
    dim: str
    accent: str
    info: str
    busy: str
    good: str
    best: str
    warn: str
    bad: str
    cursor: str
    heat: tuple[str, ...]
    """Low to high; ordered in lightness too, so that the order survives without hue."""
    owners: tuple[str, ...]


DARK = Palette(
    "pie-dark", True, "#12141c", "#171a24", "#232838", "#d8deeb", "#7d879c", "#f2a65a", "#6fb3ff", "#f2c14e", "#7bd88f",
    "#ffd866", "#f5a742", "#ff6b6b", "#2b3350",
    ("#7a6ff0", "#4f8ff7", "#2fb5c7", "#4ccb8a", "#b3d94c", "#ffd866"),
    ("#6fb3ff", "#7bd88f", "#f28fb1", "#f2c14e", "#b89cff", "#5fd3d3", "#f2a65a", "#a5c261"),
)  # fmt: skip
LIGHT = Palette(
    "pie-light", False, "#fbfaf7", "#f3f1ea", "#e3dfd3", "#23262e",
    "#6a6f7a", "#b3541e", "#1f5fae", "#8a6100", "#22753a",
    "#9a5b00", "#a85b00", "#b3261e", "#dbe4f5",
    ("#6a3fb5", "#2f62b0", "#14767e", "#2b7a34", "#7a7000", "#a84a00"),
    ("#1f5fae", "#22753a", "#a8326a", "#8a6100", "#6541b0", "#0d7377", "#b3541e", "#55701b"),
)  # fmt: skip
CONTRAST = Palette(
    "pie-contrast", True, "#000000", "#000000", "#303030", "#ffffff",
    "#c8c8c8", "#ffff00", "#66ccff", "#ffff66", "#66ff66",
    "#ffff00", "#ffcc33", "#ff8080", "#004d99",
    ("#b3a6ff", "#80bfff", "#66e0e0", "#80ff80", "#e0ff66", "#ffff00"),
    ("#66ccff", "#66ff66", "#ff99cc", "#ffff66", "#ccb3ff", "#66ffff", "#ffcc33", "#ccff99"),
)  # fmt: skip
PALETTES = {palette.name: palette for palette in (DARK, LIGHT, CONTRAST)}


class Inks:
    """Styles by role for one palette."""

    def __init__(self, palette: Palette) -> None:
        """Make the styles once."""
        self.palette = palette
        self.background = Style(bgcolor=palette.surface)
        roles = ("text", "dim", "accent", "info", "busy", "good", "best", "warn", "bad")
        self._styles = {role: Style(color=getattr(palette, role)) for role in roles}
        self._styles["strong"] = Style(color=palette.text, bold=True)
        self._styles["best"] += Style(bold=True)
        self._styles["bad"] += Style(bold=True)
        self._styles["head"] = Style(color=palette.dim, bold=True)
        self._styles["track"] = Style(color=palette.panel)
        self.cursor = Style(bgcolor=palette.cursor)
        self.glow = Style(color=palette.best, bold=True, reverse=True)
        self._heat = tuple(Style(color=color) for color in palette.heat)
        self._owners = tuple(Style(color=color) for color in palette.owners)

    def __getitem__(self, role: str) -> Style:
        """Return the style of a role."""
        return self._styles[role]

    def heat(self, share: float) -> Style:
        """Return the style of a value, 0 (low) to 1 (high)."""
        return self._heat[min(len(self._heat) - 1, max(0, int(share * len(self._heat))))]

    def owner(self, rank: int) -> Style:
        """Return the style of an owner of pages; hues repeat, the letters tell them apart."""
        return self._owners[rank % len(self._owners)]


@lru_cache
def inks_for(theme: str, *, dark: bool = True) -> Inks:
    """Return the inks of a theme; themes that are not ours get those of our dark or light one."""
    return Inks(PALETTES.get(theme) or (DARK if dark else LIGHT))


def themes() -> list[Theme]:
    """Return our themes as Textual wants them."""
    return [
        Theme(
            name=p.name,
            primary=p.accent,
            secondary=p.info,
            warning=p.warn,
            error=p.bad,
            success=p.good,
            accent=p.accent,
            foreground=p.text,
            background=p.background,
            surface=p.surface,
            panel=p.panel,
            dark=p.dark,
            variables={
                "border": p.panel,
                "border-blurred": p.panel,
                "scrollbar": p.panel,
                "scrollbar-background": p.surface,
                "scrollbar-corner-color": p.surface,
                "dim": p.dim,
                "cursor-line": p.cursor,
                "input-selection-background": p.cursor,
            },
        )
        for p in PALETTES.values()
    ]
