"""`rsllm serve`: the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rsllm.durations import parse_duration

__all__ = ["command"]


class _Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration as Go writes it, in seconds."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            seconds = float(value) if str(value).isdigit() else parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{value!r} is not a duration such as 10m: {error}", parameter, context)
        if seconds <= 0:
            self.fail("it must be longer than nothing", parameter, context)
        return seconds


@click.command("serve")
@click.option("--host", metavar="ADDRESS", help="Where to listen, in all forms of OLLAMA_HOST, instead of it.")
@click.option("--allow-public", is_flag=True, help="Listen beyond this machine although no RSLLM_API_KEY is set.")
@click.option("--idle-exit", type=_Duration(), metavar="DURATION", help="End when idle, with nothing loaded, so long.")
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log there, in three files of 5 MiB at most."
)
def command(host: str | None, allow_public: bool, idle_exit: float | None, log_file: Path | None) -> None:
    """Start the server. It logs to standard error; Ctrl-C ends it when the requests that run are done.

    \b
    Environment variables:
      OLLAMA_HOST               where to listen (default 127.0.0.1:11434)
      OLLAMA_MODELS             the folder of models
      OLLAMA_ORIGINS            origins of web pages that may ask, beside those of this machine
      OLLAMA_KEEP_ALIVE         how long a model stays loaded (default 5m)
      OLLAMA_CONTEXT_LENGTH     context of models that do not ask for another (default: what fits)
      OLLAMA_KV_CACHE_TYPE      type of the KV cache: f16, bf16, f32, q8_0, q4_0
      OLLAMA_NUM_PARALLEL       requests at once in a model (default: what memory has room for)
      OLLAMA_MAX_LOADED_MODELS  models loaded at once
      OLLAMA_MAX_QUEUE          requests that may wait (default 512)
      OLLAMA_LOAD_TIMEOUT       how long loading may show no progress (default 5m)
      OLLAMA_DEBUG              1: log details; 2: those of libraries as well
      RSLLM_API_KEY             a key that every request must carry
      RSLLM_ALLOW_PUBLIC        1: as --allow-public
      RSLLM_MAX_BODY            most bytes of a request (default 64 MiB)
      RSLLM_REQUEST_TIMEOUT     how long a request may keep a model busy (default: for ever)
      RSLLM_CLIENT_TIMEOUT      how long a client may stall (default 1m)
      RSLLM_LOG_FORMAT          text, or json: an object a line
      OTEL_EXPORTER_OTLP_ENDPOINT
                                where OpenTelemetry's spans go (pip install 'rsllm[otel]')

    \b
    Examples:
      rsllm serve
      rsllm serve --host 127.0.0.1:8080
      RSLLM_API_KEY=secret rsllm serve --host 0.0.0.0
    """
    from rsllm.address import Address
    from rsllm.server.main import serve

    serve(
        address=None if host is None else Address.parse(host),
        allow_public=allow_public,
        idle_seconds=idle_exit,
        log_file=log_file,
    )
