"""`rsllm ps`: the models that are loaded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from rsllm.cli.common import json_option, print_json
from rsllm.cli.listing import matching
from rsllm.cli.ondemand import connect
from rsllm.cli.tables import columns, from_now, human_bytes, parse_time
from rsllm.errors import ServerUnreachableError

__all__ = ["command"]


@click.command("ps")
@click.argument("prefix", required=False, default="")
@json_option
def command(prefix: str, as_json: bool) -> None:
    """List the models that are loaded: their memory, where they run, their context, and how long they stay.

    No server is started for this: where none answers, nothing is loaded.

    \b
    Examples:
      rsllm ps
      rsllm ps --json
    """
    try:
        with connect(start=False) as client:
            models = matching(client.ps(), prefix)
    except ServerUnreachableError:
        models = []
    if as_json:
        print_json({"models": models})
        return
    now = datetime.now(UTC)
    click.echo(columns(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"), (_row(model, now) for model in models)))


def _row(model: dict[str, Any], now: datetime) -> list[str]:
    size, on_gpu = int(model.get("size") or 0), int(model.get("size_vram") or 0)
    loading = model.get("phase") in ("planning", "waiting", "loading")
    return [
        str(model.get("name", "")),
        str(model.get("digest", ""))[:12],
        human_bytes(size),
        _processor(size, on_gpu),
        str(model.get("context_length") or ""),
        "Loading..." if loading else from_now(parse_time(str(model.get("expires_at", ""))), now),
    ]


def _processor(size: int, on_gpu: int) -> str:
    if on_gpu == 0:
        return "100% CPU"
    if on_gpu > size:
        return "Unknown"
    if on_gpu == size:
        return "100% GPU"
    on_cpu = round((size - on_gpu) * 100 / size)
    return f"{on_cpu}%/{100 - on_cpu}% CPU/GPU"
