"""The OpenAPI 3.1 description of the administration interface, made from the table of endpoints."""

from collections.abc import Sequence
from typing import Any

from octavo.bookie.admin.endpoints import Endpoint
from octavo.bookie.admin.fields import Field
from octavo.bookie.admin.http_messages import JSON
from octavo.bookie.admin.schemas import ERROR

EVERY_ERROR = (400, 401, 403, 404, 405, 408, 413, 431, 500, 503)
"""Statuses that any request can be refused with: it is malformed, of another host, too large, too slow."""

_MEANINGS = {
    400: "The request is malformed, or a parameter is not accepted.",
    401: "The client of another host has given neither a certificate nor a key of a principal.",
    403: "Not for this client: guarded endpoints are answered on the socket and to the role admin over TLS, and others"
    " for known hosts.",
    404: "There is no such thing.",
    405: "The method does not apply.",
    408: "The request was not complete in time.",
    409: "It cannot be done now.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    431: "The head is too large.",
    500: "A defect of the bookie.",
    503: "Not at the moment: the bookie is starting, stopping or broken, or the metadata store does not answer.",
}


def describe(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The document. ``version``: of the software."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Octavo bookie",
            "version": version,
            "description": "Administration of one bookie, on the socket admin.sock in its data directory and, if"
            " admin_listen is set, over TCP: on loopback for requests that only observe it, elsewhere over TLS for"
            " principals of the cluster.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.text + (" Only on the socket, or over TLS for the role admin." if endpoint.guarded else ""),
        "responses": _responses(endpoint),
    }
    parameters = [_parameter(field, "path") for field in endpoint.in_path]
    parameters += [_parameter(field, "query") for field in endpoint.in_query]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.in_body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _body(endpoint.in_body)}}}
    return operation


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    schema: Any = {"type": "string"} if endpoint.answer is None else endpoint.answer
    answers = {str(endpoint.status): {"description": "Done.", "content": {endpoint.content_type: {"schema": schema}}}}
    statuses = {*EVERY_ERROR, *endpoint.errors}
    if endpoint.in_body is not None:
        statuses.add(415)
    # Health and readiness answer 503 with their own body.
    own = {503} & set(endpoint.errors) if endpoint.path in {"/healthz", "/readyz"} else set()
    for status in sorted(statuses):
        content: Any = {"$ref": "#/components/schemas/Error"}
        if status in own:
            content = {"anyOf": [schema, content]}
        answers[str(status)] = {"description": _MEANINGS[status], "content": {JSON: {"schema": content}}}
    return answers


def _parameter(field: Field, where: str) -> dict[str, Any]:
    return {
        "name": field.name,
        "in": where,
        "required": field.required,
        "description": field.text,
        "schema": field.schema(),
    }


def _body(fields: Sequence[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field.name: {**field.schema(), "description": field.text} for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }
