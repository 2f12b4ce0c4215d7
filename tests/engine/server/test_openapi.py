"""The OpenAPI document, and what a fuzzer that reads it finds: nothing but typed answers."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pie_mlx.server.app import PATHS
from pie_mlx.server.openapi import document

TYPED = {"message", "type", "code", "param", "detail"}


def test_every_path_is_in_the_document(serve: Any) -> None:
    """Document and routes name the same paths and methods; it is served as it is made."""
    told = {(path, method.upper()) for path, item in document()["paths"].items() for method in item}
    assert told == {(path.path.replace(":path", ""), path.method) for path in PATHS}
    assert serve().http.get("/openapi.json").json()["openapi"] == "3.1.0"


OPERATIONS = [result.ok() for result in schemathesis.openapi.from_dict(document()).get_all_operations()]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_a_fuzzer_gets_typed_answers_alone(serve: Any, operation: Any) -> None:
    """What is drawn from the document, valid or not, gets 2xx or a typed error, and no leak."""
    server = serve(default_max_tokens=4, request_timeout_s=5.0)
    modes = schemathesis.GenerationMode
    strategies = [operation.as_strategy(generation_mode=modes.POSITIVE)]
    if operation.body:
        strategies.append(operation.as_strategy(generation_mode=modes.NEGATIVE))

    @settings(
        max_examples=12,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(strategies))
    def probe(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=20)
        assert response.status_code < 500 or response.status_code in (503, 504), response.text
        if response.status_code >= 400 and operation.path != "/healthz":
            assert set(response.json()["error"]) >= TYPED

    probe()
    assert server.chat().status_code == 200
    assert server.free_pages() == 256
