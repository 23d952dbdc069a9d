"""The server: Ollama's HTTP routes, and OpenAI's and Anthropic's, on top of the store and the runners.

====================== =============================================================================================
`main.py`              `serve`: where it listens, what it refuses to, its end
`connection.py`        connections whose clients have stopped
`app.py`               the routes
`access.py`            who may ask: hosts, origins, the key; what becomes of each request's trace
`routes/`              a handler reads a request, calls one function and says what came of it
`dialects/`            OpenAI's and Anthropic's protocols, translated
`body.py` `schemas.py` `messages.py` `options.py`   what requests may say, read and checked
`models.py` `templates.py` `abilities.py`           names as models, with what their files say and what they can do
`prompts.py`           messages as token ids that fit the context
`service.py` `generation.py` `answers.py` `reading.py` `forced.py` `embedding.py`   generating and embedding
`listing.py`           what is said of the store's models
`streaming.py`         replies: lines of JSON, and the end of who no longer listens
`errors.py`            exceptions as statuses, once
`trace.py`             one request as it is followed, which becomes:
`logs.py`              a line of the log,
`metrics.py` `exposition.py`   the counts of `/metrics`,
`spans.py`             and spans of OpenTelemetry
`openapi.py` `openapi_schemas.py`   the description of the routes
====================== =============================================================================================

There is no model in this process; `rsllm.runner` has one child for each.
"""
