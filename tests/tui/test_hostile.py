"""Model text is data: no tag is obeyed and no control reaches the terminal, wherever it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.search.node import NodeId, Score
from pie_mlx.search.trace import AlarmRaised, Finished, FinishReason, NodeDone, NodeStarted, Noticed, RunStarted, Scored
from pie_mlx.tui.desk import Sources

HOSTILE = [
    "[/x]", "[red", "\\[", "[@click=app.quit]x[/]", "[b]bold[/b] [/INST] [link=https://x]y[/]",
    "\x1b[?1003h\x1b]52;c;QQ==\x07", "\x1b]8;;file:///x\x1b\\link", "a\rb\bc", "\u202eright\u2066",
    "\udc80", "😀" * 40, "e\u0301\u200b\u200d",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_literal_everywhere(
    text: str, new_teller: Any, save_trace: Any, tmp_path: Path, *, open_app: Any, drive: Any
) -> None:
    """As question, thought, reason, label, scorer, notice, alarm, answer and header: shown, never obeyed."""
    teller = new_teller()
    teller.tell(RunStarted(question=text, strategy=text, scorer=text))
    for node in map(NodeId, ("0", "0.0", "0.1")):
        teller.tell(NodeStarted(node=node))
        teller.tell(NodeDone(node=node, text=f"<{text}>", reasoning=text, key=text))
        teller.tell(Scored(node=node, score=Score(0.5, text, 0.1, {text: 1.0})))
    teller.tell(AlarmRaised(kind=text, message=text))
    teller.tell(Noticed(text=text))
    teller.tell(Finished(reason=FinishReason.FAILED, answer=text, error=text))
    app = open_app(Sources(trace=save_trace(tmp_path / "run.jsonl", teller.events)))

    async def scenario(pilot: Pilot[None]) -> None:
        shots = []
        for keys in (
            ["j"],
            ["v"],
            ["v"],
            ["v"],
            ["v"],
            ["w"],
            ["escape", "d", "j", "d"],
            ["escape", "i"],
            ["escape", "escape", "E"],
        ):
            await pilot.press(*keys)
            shots.append(app.export_screenshot())
        assert app.is_running
        strips = [strip.text for strip in app.screen._compositor.render_strips()]
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for strip in strips for char in strip)
        assert not any("\u202e" in shot or "\x1b" in shot for shot in shots)

    drive(app, scenario, size=(140, 45))
