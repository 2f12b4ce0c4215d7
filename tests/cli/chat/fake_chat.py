"""Runs the interactive chat on the scripted device, as a program of its own: what the terminal tests drive."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

from pie_mlx.chat import ChatSession, ChatSettings, SessionStore
from pie_mlx.cli.chat.keyboard import Interrupts, Keyboard
from pie_mlx.cli.chat.loop import ChatLoop
from pie_mlx.cli.chat.screen import Screen
from pie_mlx.cli.diagnostics import Stderr

HOSTILE = "\x1b[2J\x1b[?1003h\x1b]52;c;QUFB\x07\x1b]8;;http://x\x1b\\link\r over\x08\x08 [/red] [@click=app.quit]x[/]"
CODE = "Look:\n\n```python\ndef f(x):\n    return {'a': x}\n```\n\n- one\n- two 😀 你好\n\n1. first\n2. second\n\nEnd."


def answer(message: str) -> str:
    """Reply by the message's first word; anything else is told back."""
    word, _, rest = message.partition(" ")
    if word == "long":
        return "".join(f"line {number} 😀 你好 👩‍👩‍👧 end{number}\n\n" for number in range(int(rest)))
    if word == "slow":
        return "word " * 400
    if word == "open":
        return "text\n\n```python\nx = 1\n" + "y = 2\n" * 200
    table = {
        "hostile": HOSTILE,
        "code": CODE,
        "quotes": ">" * 600,
        "tags": "[/INST] [red] </s> <|eot_id|> [/x] \\[ end",
        "think": "<think>\n" + "hm " * 30 + "</think>\n\nso: 42",
        "para": "many words in one paragraph " * 60,
    }
    return table.get(word, f"you said: {message!r} ({message.count(chr(10)) + 1} lines)")


def main() -> None:
    """Chat until the user leaves."""
    path = Path(sys.argv[1])
    spec = importlib.util.spec_from_file_location("chat_scripted", path)
    assert spec is not None
    assert spec.loader is not None
    scripted = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = scripted
    spec.loader.exec_module(scripted)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pause = float(os.environ.get("FAKE_PAUSE_S", "0.001"))
    prefill = float(os.environ.get("FAKE_PREFILL_S", "0"))
    engine = scripted.start_engine(answer, pause_s=pause, prefill_pause_s=prefill, prefill_chunk=64)
    state = Path(os.environ["PIE_MLX_STATE_DIR"])
    with SessionStore(state / "chat.sqlite3") as store, engine, Interrupts() as interrupts:
        settings = ChatSettings(max_tokens=4000)
        exists = any(facts.name == "fake" for facts in store.sessions())
        with (
            ChatSession.resume(engine, store, "fake")
            if exists
            else ChatSession.new(engine, store, settings=settings, name="fake")
        ) as session:
            loop = ChatLoop(
                session,
                Screen(sys.stdout),
                keyboard=Keyboard(sys.stdin.fileno(), interrupts),
                stderr=Stderr(),
                theme="light" if os.environ.get("FAKE_THEME") == "light" else "dark",
                history=state / "chat_history",
            )
            loop.run(interrupts)
    sys.stdout.write(f"left at {time.time():.0f}\n")


if __name__ == "__main__":
    main()
