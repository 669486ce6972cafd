"""The OpenAPI description: FastAPI's own, made from the routes, with additions.

The additions are the models of bodies that routes read themselves, the key, and one example for every call and answer.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from duly.api import examples
from duly.api.access import Access
from duly.api.schemas import (
    DeadLetterFilterBody,
    JobBody,
    MonitorBody,
    PauseBody,
    PreviewBody,
    ProblemDocument,
    WindowBody,
    change_schema,
)

_BODIES: tuple[type[BaseModel], ...] = (
    JobBody, PreviewBody, PauseBody, WindowBody, DeadLetterFilterBody, MonitorBody, ProblemDocument,
)  # fmt: skip
_TEMPLATE = "#/components/schemas/{model}"
_METHODS = ("get", "post", "put", "patch", "delete")
SECURITY = "apiKey"


def install(app: FastAPI, access: Access) -> None:
    """Made once, on the first request for it; only whether a key is needed may change after that."""
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(describe(app))
        key: dict[str, list[str]] = {SECURITY: []}
        return {**made, "security": [key] if access.known_to_be_needed else [{}, key]}

    app.openapi = openapi  # type: ignore[method-assign]


def describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, definitions = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_TEMPLATE)
    schemas.update(definitions.get("$defs", {}))
    schemas["JobChange"] = change_schema()
    # FastAPI's own error documents are not used.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        SECURITY: {
            "type": "http",
            "scheme": "bearer",
            "description": "a key made by `duly key create`, or the local key of the user who started the server",
        }
    }
    for path in document["paths"].values():
        for method in _METHODS:
            if method in path:
                _add_examples(path[method])
    return document


def _add_examples(operation: dict[str, Any]) -> None:
    example = examples.EXAMPLES[operation["operationId"]]
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in examples.PARAMETERS:
            parameter["example"] = examples.PARAMETERS[parameter["name"]]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        content["example"] = example.lines if media_type == "application/x-ndjson" else example.request
    for status, answer in operation["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            if media_type == "application/problem+json":
                content["example"] = examples.problem(int(status))
            else:
                content["example"] = example.response
