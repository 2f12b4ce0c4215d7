"""The daemon's log: one line an exchange, without prompts unless they are asked for."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pie_mlx.server.exchange import Exchange

LOG = logging.getLogger("pie_mlx.server")
_LONGEST = 2000
_LOOKS = ("/healthz", "/metrics", "/v1/pages")
"""Paths that are asked for again and again: a line each would hide all others."""


def log_exchange(exchange: Exchange) -> None:
    """Write the line of an exchange that is over."""
    request = exchange.request
    notes = " ".join(f"{name}={value}" for name, value in exchange.notes.items())
    is_look = request.url.path in _LOOKS and exchange.status == 200
    LOG.log(
        logging.DEBUG if is_look else logging.INFO,
        "%s %s %s %s %.0f ms%s",
        exchange.client,
        request.method,
        ascii(request.url.path)[1:-1],
        exchange.status,
        (time.monotonic() - exchange.began_s) * 1000,
        f" {notes}" if notes else "",
    )


def log_text(exchange: Exchange, what: str, text: str) -> None:
    """Write a prompt or an answer, where the settings ask for it."""
    if exchange.settings.logs_prompts:
        LOG.info("%s %s: %s", exchange.client, what, ascii(text[:_LONGEST]))
