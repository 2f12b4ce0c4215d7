"""The OpenAPI document, made from the models that read the bodies."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pie_mlx import __version__
from pie_mlx.server.bodies import ChatBody, CompletionBody, LoadBody, SearchBody, SteeringBody

_BODIES: tuple[type[BaseModel], ...] = (ChatBody, CompletionBody, LoadBody, SearchBody, SteeringBody)
_ERRORS = {
    "400": "What was asked can never work: a wrong body, a prompt that is too long, more pages than there are.",
    "401": "The key is missing or wrong.",
    "403": "The Host header names another machine.",
    "404": "There is no such path, model or run.",
    "408": "The body did not arrive in time.",
    "409": "The model does not fit; see the numbers.",
    "413": "A limit on size or number was passed.",
    "415": "The body is not announced as JSON.",
    "429": "Too many requests wait already; see Retry-After.",
    "431": "The headers are too many or too long.",
    "503": "Starved, draining or dead; see Retry-After and the code.",
    "504": "The deadline has passed.",
}


def document() -> dict[str, Any]:
    """Return the document."""
    _, schemas = models_json_schema(
        [(body, "validation") for body in _BODIES], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "pie-mlx", "version": __version__},
        "paths": _paths(),
        "components": {
            "schemas": {**schemas["$defs"], "Error": _error_schema()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, Any]:
    """Return every path."""
    json, events, text = "application/json", "text/event-stream", "text/plain"
    run_and_verb = [_in_path("run"), _in_path("verb")]
    return {
        "/v1/models": {"get": _operation("List the model", json)},
        "/v1/models/{model}": {"get": _operation("Describe the model", json, parameters=[_in_path("model")])},
        "/v1/models/{model}/load": {
            "post": _operation("Change to another model", json, body=LoadBody, parameters=[_in_path("model")])
        },
        "/v1/chat/completions": {"post": _operation("Answer a conversation", json, events, body=ChatBody)},
        "/v1/completions": {"post": _operation("Continue a text", json, events, body=CompletionBody)},
        "/v1/tot": {"post": _operation("Search a tree of thoughts", json, events, body=SearchBody)},
        "/v1/tot/{run}/{verb}": {
            "post": _operation("Steer a search", json, body=SteeringBody, parameters=run_and_verb)
        },
        "/v1/pages": {"get": _operation("Read pages, contexts, requests and alarms", json)},
        "/metrics": {"get": _operation("Figures for Prometheus", text)},
        "/healthz": {"get": _operation("Whether the engine works", json)},
        "/openapi.json": {"get": _operation("This document", json)},
    }


def _operation(
    summary: str, *kinds: str, body: type[BaseModel] | None = None, parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return one operation with its answers."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    good = {
        kind: {"schema": {"type": "object"} if kind == "application/json" else {"type": "string"}} for kind in kinds
    }
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": good}}
    responses |= {status: {"description": about, "content": error} for status, about in _ERRORS.items()}
    if summary == "Whether the engine works":
        responses["503"] = {
            "description": "It does not.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    operation: dict[str, Any] = {"summary": summary, "responses": responses, "security": [{}, {"bearer": []}]}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _error_schema() -> dict[str, Any]:
    """Return the schema of every error's body."""
    text = {"type": "string"}
    maybe = {"type": ["string", "null"]}
    fields = {"message": text, "type": text, "code": text, "param": maybe, "hint": maybe, "detail": {"type": "object"}}
    error = {"type": "object", "properties": fields, "required": ["message", "type", "code", "param", "detail"]}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
