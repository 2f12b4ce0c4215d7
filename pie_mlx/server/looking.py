"""The endpoints that look (models, health, pages, metrics), and the one that changes the model."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, astuple

from pie_mlx.errors import ModelError
from pie_mlx.server.bodies import LoadBody, read
from pie_mlx.server.errors import ModelNotLoadedError, NotSupportedError, SwitchingError
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.logs import LOG
from pie_mlx.server.state import ServerState

PAGES_SCHEMA = "pie-mlx.pages/1"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def models(state: ServerState, exchange: Exchange) -> None:
    """List the model that is served, and those that it could be changed to."""
    shelf = state.shelf
    others = [] if shelf is None else await asyncio.to_thread(shelf.names)
    own = (state.model, state.engine.facts.model)
    cards = [_other_card(state, name) for name in others if name not in own]
    await exchange.answer({"object": "list", "data": [_card(state), *cards]})


async def model(state: ServerState, exchange: Exchange) -> None:
    """Describe the model.

    Raises:
        NoSuchModelError: another one was asked for.
    """
    state.check_model(exchange.request.path_params["model"])
    await exchange.answer(_card(state))


async def load(state: ServerState, exchange: Exchange) -> None:
    """Change to another model, when what runs has finished; refused where it does not fit.

    Raises:
        NotSupportedError: the server was made for one engine.
        PieError: the model is not here, does not fit, or cannot be loaded; the old one is served on.
    """
    read(LoadBody, exchange.body)
    name = exchange.request.path_params["model"]
    if state.switch is None:
        raise NotSupportedError("this server cannot change its model", "model")
    try:
        await state.switch(name, exchange)
    except ModelError as error:
        LOG.info("model %s cannot be loaded: %s", ascii(name), ascii(str(error)))
        raise ModelNotLoadedError(name, error.code) from error
    await exchange.answer({"model": name, "loaded": True})


def _other_card(state: ServerState, name: str) -> dict[str, object]:
    """Return a model that is installed and not served."""
    return {"id": name, "object": "model", "created": state.created_s, "owned_by": "pie-mlx", "loaded": False}


def _card(state: ServerState) -> dict[str, object]:
    """Return the model as the protocol lists it, with its context's length."""
    return {
        "id": state.model,
        "object": "model",
        "created": state.created_s,
        "owned_by": "pie-mlx",
        "loaded": True,
        "max_model_len": state.engine.facts.context_tokens,
    }


async def health(state: ServerState, exchange: Exchange) -> None:
    """Say whether the engine works: 200 where it does, 503 where it does not or the server is ending."""
    status = "draining" if state.is_draining else "ok" if state.is_healthy else "stalled"
    if isinstance(state.refusal, SwitchingError):
        status = "switching"
    elif not state.engine.is_alive:
        status = "dead"
    await exchange.answer({"status": status}, status=200 if status == "ok" else 503)


async def pages(state: ServerState, exchange: Exchange) -> None:
    """Tell one consistent reading of pages, contexts and requests, and the last alarms; ``map=1`` adds every page."""
    engine = state.engine
    readings = engine.readings()
    wants_map = exchange.request.query_params.get("map") == "1"
    counts = readings.pages
    page_size = engine.settings.page_size
    await exchange.answer(
        {
            "schema": PAGES_SCHEMA,
            "model": state.model,
            "is_alive": readings.is_alive,
            "step_s": readings.step_s,
            "page_size": page_size,
            "page_bytes": page_size * engine.facts.kv_bytes_per_token,
            "pages": {**asdict(counts), "held": counts.held, "sharing_ratio": counts.sharing_ratio},
            "contexts": [asdict(context) for context in readings.contexts],
            "requests": [asdict(request) for request in readings.requests],
            "counters": dict(readings.counters),
            "admission": {
                "completions": {"inside": state.gate.num_inside, "waiting": state.gate.num_waiting},
                "searches": {"inside": state.search_gate.num_inside, "waiting": state.search_gate.num_waiting},
            },
            "runs": sorted(state.runs),
            "map": [list(astuple(page)) for page in engine.page_map()] if wants_map else None,
            "alarms": [asdict(alarm) for alarm in list(state.metrics.alarms)],
        }
    )


async def metrics(state: ServerState, exchange: Exchange) -> None:
    """Tell the figures in Prometheus' text format."""
    await exchange.answer_raw(state.metrics.text(), _METRICS_TYPE)
