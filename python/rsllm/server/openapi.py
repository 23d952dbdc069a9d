"""`/openapi.json`: the routes of this server as OpenAPI 3.1 describes them.

Options come from the tables that the handlers read them by; the other fields are written here, and tests hold them
against what the readers take and what the routes reply. Every route that is mounted is described. What is said of
OpenAI's and Anthropic's protocols is what of them has an effect here, or is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from rsllm.options import OPTIONS
from rsllm.server.openapi_schemas import BOOLEAN, INTEGER, NUMBER, STRING, TEXTS, Schema, schemas
from rsllm.server.options import LOADING, SAMPLING

__all__ = ["OPERATIONS", "Operation", "document"]

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
JSON = "application/json"


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    tag: str
    request: str | None = None
    """The component that describes the body."""
    reply: str | None = None
    stream: str | None = None
    """The content type of a reply that comes in parts."""
    statuses: tuple[int, ...] = (400, 404, 500, 503)
    success: int = 200
    text: str | None = None
    """The content type of a reply that is no JSON."""
    error: str = "Error"
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parts of the path, and the patterns that they match."""


DIGEST = {"digest": r"^sha256:[0-9a-f]{64}$"}
KEY = {"key": r"^[A-Za-z0-9_-]+$"}
MODEL = (400, 404, 413, 500, 503, 504)
STORE = (400, 401, 404, 413, 500, 502, 507)

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/", "A sign of life", "server", text="text/plain", statuses=()),
    Operation("GET", "/healthz", "Whether the process lives", "server", reply="Health", statuses=()),
    Operation("GET", "/readyz", "Whether requests are taken", "server", reply="Health", statuses=(503,)),
    Operation("GET", "/metrics", "Counts, as Prometheus reads them", "server", text="text/plain", statuses=()),
    Operation("GET", "/openapi.json", "This description", "server", reply="Anything", statuses=()),
    Operation("GET", "/api/version", "Versions", "server", reply="Version", statuses=()),
    Operation("POST", "/api/generate", "Go on with a prompt", "native", "Generate", "Generated", NDJSON, MODEL),
    Operation("POST", "/api/chat", "The next message of a conversation", "native", "Chat", "Chatted", NDJSON, MODEL),
    Operation("POST", "/api/embed", "Vectors of texts", "native", "Embed", "Embedded", statuses=MODEL),
    Operation("POST", "/api/embeddings", "Vector of one text", "native", "OldEmbed", "OldEmbedded", statuses=MODEL),
    Operation("GET", "/api/tags", "Models of the store", "models", reply="Tags"),
    Operation("GET", "/api/ps", "Models that are loaded", "models", reply="Running"),
    Operation("POST", "/api/show", "What is known of a model", "models", "Show", "Shown", statuses=STORE),
    Operation("POST", "/api/copy", "Another name for a model", "models", "Copy", statuses=STORE),
    Operation("DELETE", "/api/delete", "Remove a name, and what nothing else needs", "models", "Name", statuses=STORE),
    Operation("POST", "/api/pull", "Fetch a model", "models", "Transfer", "Progress", NDJSON, STORE),
    Operation("POST", "/api/push", "Send a model to a registry", "models", "Transfer", "Progress", NDJSON, STORE),
    Operation("POST", "/api/create", "Make a model", "models", "Create", "Progress", NDJSON, STORE),
    Operation("HEAD", "/api/blobs/{digest}", "Whether a blob is there", "models", parameters=DIGEST),
    Operation(
        "POST", "/api/blobs/{digest}", "Put a blob", "models", "Bytes", success=201, statuses=STORE, parameters=DIGEST
    ),
    Operation("GET", "/api/status", "That there is no cloud", "cloud", reply="Anything", statuses=()),
    Operation("POST", "/api/me", "Refused: there is no cloud", "cloud", statuses=()),
    Operation("POST", "/api/signout", "Refused: nobody is signed in", "cloud", statuses=()),
    Operation("DELETE", "/api/user/keys/{key}", "Refused: there is no cloud", "cloud", statuses=(), parameters=KEY),
    Operation("POST", "/api/experimental/web_search", "Refused: there is no cloud", "cloud", statuses=()),
    Operation("POST", "/api/experimental/web_fetch", "Refused: there is no cloud", "cloud", statuses=()),
    Operation(
        "GET", "/api/experimental/model-recommendations", "Nothing is recommended", "cloud", reply="Anything",
        statuses=(),
    ),
    Operation(
        "POST", "/v1/audio/transcriptions", "Refused: no model can hear", "OpenAI", statuses=(400,), error="OpenAIError"
    ),
    Operation(
        "POST", "/v1/chat/completions", "A chat completion", "OpenAI", "OpenAIChat", "OpenAIChatted", EVENTS, MODEL,
        error="OpenAIError",
    ),
    Operation(
        "POST", "/v1/completions", "A text completion", "OpenAI", "OpenAICompletion", "OpenAICompleted", EVENTS, MODEL,
        error="OpenAIError",
    ),
    Operation(
        "POST", "/v1/embeddings", "Vectors of texts", "OpenAI", "OpenAIEmbed", "OpenAIEmbedded", statuses=MODEL,
        error="OpenAIError",
    ),
    Operation(
        "POST", "/v1/responses", "A response", "OpenAI", "OpenAIResponse", "OpenAIResponded", EVENTS, MODEL,
        error="OpenAIError",
    ),
    Operation("GET", "/v1/models", "Models of the store", "OpenAI", reply="OpenAIModels", error="OpenAIError"),
    Operation(
        "GET", "/v1/models/{model}", "One model", "OpenAI", reply="OpenAIModel", error="OpenAIError",
        parameters={"model": "."},
    ),
    Operation(
        "POST", "/v1/messages", "A message", "Anthropic", "Message", "Messaged", EVENTS, MODEL, error="AnthropicError"
    ),
    Operation(
        "POST", "/v1/messages/count_tokens", "How long a prompt is", "Anthropic", "MessageCount", "MessageCounted",
        statuses=MODEL, error="AnthropicError",
    ),
)  # fmt: skip

_STATUS_TEXTS = {
    400: "A mistake in the request; the error says which.",
    401: "A key is missing or wrong, or a registry lets this user not in.",
    403: "This host or origin may not ask.",
    404: "The model is not there.",
    408: "The request did not come to its end in time.",
    413: "The body is larger than RSLLM_MAX_BODY.",
    415: "The body is compressed in a way that is not read.",
    500: "A failure of the server; the log has more of it under the request's id.",
    502: "A registry failed.",
    503: "As many requests wait as may, or the server is shutting down.",
    504: "The request took longer than RSLLM_REQUEST_TIMEOUT.",
    507: "The disk is full.",
}


@functools.cache
def document(version: str) -> Schema:
    """The whole description."""
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rsllm",
            "version": version,
            "summary": "Runs large language models on the machine in front of you.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Options": _options(), **schemas()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"header": []}],
    }


def _described(operation: Operation) -> Schema:
    described: Schema = {
        "operationId": f"{operation.method.lower()}{operation.path.translate(_IDS)}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {str(operation.success): _success(operation)},
    }
    if operation.success == 201:  # the blob was there already
        described["responses"]["200"] = {"description": "It was there already."}
    for status in sorted({*operation.statuses, 401, 403, *((408, 415) if operation.request else ())}):
        content = {JSON: {"schema": _reference("Health" if operation.path == "/readyz" else operation.error)}}
        reply: Schema = {"description": _STATUS_TEXTS[status]}
        described["responses"][str(status)] = reply if operation.method == "HEAD" else {**reply, "content": content}
    if operation.request is not None:
        kind = "application/octet-stream" if operation.request == "Bytes" else JSON
        schema: Schema = {} if operation.request == "Bytes" else _reference(operation.request)
        described["requestBody"] = {"required": True, "content": {kind: {"schema": schema}}}
    if operation.parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": pattern}}
            for name, pattern in operation.parameters.items()
        ]
    return described


_IDS = str.maketrans({"/": "_", "{": None, "}": None, ".": "_"})


def _success(operation: Operation) -> Schema:
    content: Schema = {}
    if operation.reply is not None:
        content[JSON] = {"schema": _reference(operation.reply)}
    if operation.stream == NDJSON:
        content[NDJSON] = {"schema": {"description": "A line each, as the whole reply but for what is not known yet."}}
    elif operation.stream is not None:
        content[operation.stream] = {"schema": {"description": "Server-sent events of the protocol."}}
    if operation.text is not None:
        content[operation.text] = {"schema": STRING}
    return {"description": "Done.", **({"content": content} if content else {})}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _options() -> Schema:
    """The options of a native request, by the tables of `rsllm.options` and `rsllm.server.options`."""
    properties: dict[str, Schema] = {}
    for name, (ours, convert) in SAMPLING.items():
        option = OPTIONS[ours]
        schema = _TYPES[convert.__name__]
        properties[name] = {**schema, "description": f"{option.help.rstrip('.')} ({option.range})."}
    for name, convert in LOADING.items():
        properties[name] = _TYPES[convert.__name__]
    properties["num_keep"] = {**INTEGER, "description": "Tokens at the beginning that a full context keeps."}
    return {
        "type": "object",
        "description": "Ollama's options and ours. Others are answered with a warning.",
        "properties": properties,
    }


# What the converters of `rsllm.server.options` take.
_TYPES: dict[str, Schema] = {
    "_integer": INTEGER,
    "_or_none": INTEGER,
    "_or_zero": INTEGER,
    "_number": NUMBER,
    "_flag": BOOLEAN,
    "_text": STRING,
    "_texts": TEXTS,
    "_biases": {"type": "object", "additionalProperties": NUMBER},
}
