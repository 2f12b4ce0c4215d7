"""A server that changes its model: what fits is loaded when work has finished, what does not fit is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import ModelCorrupt, ModelNotFound
from pie_mlx.models.tokenizer import Tokenizer

MIB = 1 << 20
SIZES = {"fake": 100, "small": 120, "broken": 10, "huge": 400}


class Shelf:
    """Made-up models with sizes, on a machine that has 50 MiB free beside the model that is served."""

    first = "fake"

    def __init__(self, device: Callable[..., Any], tokenizer: Tokenizer) -> None:
        self.may_open = threading.Event()
        self.may_open.set()
        self.is_lost = False
        self.opened: list[Engine] = []
        self._device = device
        self._tokenizer = tokenizer

    def names(self) -> tuple[str, ...]:
        """Return all."""
        return tuple(SIZES)

    def need_bytes(self, name: str) -> int:
        """Return the size by the table."""
        if name not in SIZES:
            raise ModelNotFound(name, "there is no such model")
        return SIZES[name] * MIB

    def available_bytes(self) -> int:
        """Return what is free beside the model that is served."""
        return 50 * MIB

    def open(self, name: str) -> Engine:
        """Start an engine, when that is allowed."""
        self.may_open.wait(20)
        if name == "broken" or self.is_lost:
            raise ModelCorrupt(name, "its weights are truncated")
        settings = EngineSettings(pool_pages=64, page_size=16)
        self.opened.append(Engine.start(lambda: self._device(name=name), settings, self._tokenizer))
        return self.opened[-1]


@pytest.fixture
def shelf(backend: Any, tokenizer_of: Any) -> Shelf:
    """Return a shelf of models on the fake device."""
    return Shelf(backend, tokenizer_of("{{ messages[0].content }}"))


def load(server: Any, name: str) -> Any:
    """Ask for a change."""
    return server.http.post(f"/v1/models/{name}/load", json={})


def test_a_model_is_changed_and_changed_back(serve: Any, shelf: Shelf) -> None:
    """The list names what is there; after the change the new model answers, and the old name is not found."""
    server = serve(shelf=shelf, served_name="alias")
    listed = {card["id"]: card["loaded"] for card in server.http.get("/v1/models").json()["data"]}
    assert listed == {"alias": True, "small": False, "broken": False, "huge": False}
    old = server.engine
    assert load(server, "small").json() == {"model": "small", "loaded": True}
    assert not old.is_alive
    assert server.chat(model="small").json()["model"] == "small"
    assert server.chat(model="fake").status_code == 404
    assert server.http.get("/v1/pages").json()["pages"]["total"] == 64
    assert load(server, "small").status_code == 200
    assert load(server, "fake").status_code == 200
    assert server.chat(model="alias").json()["model"] == "alias"
    assert server.http.get("/healthz").status_code == 200
    assert [engine.is_alive for engine in shelf.opened] == [False, True]


def test_what_does_not_fit_is_refused_with_its_numbers(serve: Any, shelf: Shelf) -> None:
    """A conflict that says need and available, where the memory of the present model counts as free."""
    server = serve(shelf=shelf)
    refusal = load(server, "huge")
    error = refusal.json()["error"]
    assert (refusal.status_code, error["code"]) == (409, "not_enough_memory")
    assert (error["detail"]["need_bytes"], error["detail"]["available_bytes"]) == (400 * MIB, 150 * MIB)
    for name in ("nowhere", "/etc", "../fake"):
        assert load(server, name).status_code == 404
    assert server.chat().status_code == 200
    assert server.engine.is_alive


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(serve: Any, shelf: Shelf) -> None:
    """The old model is opened again, and the answer says what was wrong."""
    server = serve(shelf=shelf)
    refusal = load(server, "broken")
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (409, "model_not_loaded")
    assert server.chat().json()["model"] == "fake"


def test_without_any_model_the_server_ends(serve: Any, shelf: Shelf) -> None:
    """Where the old model cannot be opened again either, it is as if the engine had died."""
    shelf.is_lost = True
    server = serve(shelf=shelf, drain_timeout_s=0.5)
    assert load(server, "small").status_code == 409
    server.wait_until(lambda: server.exit_codes == [4])


def test_work_is_finished_first_and_new_work_waits_outside(serve: Any, shelf: Shelf, backend: Any) -> None:
    """What runs ends whole; what comes meanwhile is a typed 503, and health says why."""
    server = serve(shelf=shelf, backend=backend(pause_s=0.01))
    shelf.may_open.clear()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.chat, max_tokens=100)
        server.wait_until(lambda: server.engine.readings().requests)
        change = pool.submit(load, server, "small")
        server.wait_until(lambda: server.http.get("/healthz").json() == {"status": "switching"})
        assert running.result().json()["usage"]["completion_tokens"] == 100
        refusal = server.chat()
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "switching")
        assert int(refusal.headers["retry-after"]) > 0
        assert load(server, "small").status_code == 503
        shelf.may_open.set()
        assert change.result().status_code == 200
    assert server.chat(model="small").status_code == 200


def test_a_server_of_one_engine_cannot_change(serve: Any) -> None:
    """Without a shelf a change is refused as not supported."""
    refusal = load(serve(), "small")
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "not_supported")
