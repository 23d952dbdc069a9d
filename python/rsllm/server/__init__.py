"""The server: Ollama's HTTP routes on top of the store and the runners.

================  ==================================================================================================
`main.py`         `serve`: where it listens, what it refuses to, its end
`app.py`          the routes
`access.py`       who may ask: hosts, origins, the key; the log of requests
`schemas.py`      bodies of requests, read and checked
`options.py`      Ollama's options as those of this engine
`models.py`       names as models, with what their files say
`prompts.py`      messages as token ids that fit the context
`service.py`      generating and embedding
`streaming.py`    replies: lines of JSON, and the end of who no longer listens
`errors.py`       exceptions as statuses, once
`routes/`         a handler reads a request, calls one function and says what came of it
================  ==================================================================================================

There is no model in this process; `rsllm.runner` has one child for each.
"""
