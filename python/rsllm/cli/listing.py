"""`rsllm list`: the models of the store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from rsllm.cli.common import json_option, print_json
from rsllm.cli.ondemand import connect
from rsllm.cli.tables import ago, columns, human_bytes, parse_time

__all__ = ["command", "table_of"]


@click.command("list")
@click.argument("prefix", required=False, default="")
@json_option
def command(prefix: str, as_json: bool) -> None:
    """List the models there are, the newest first; with PREFIX those whose names begin so, in any case.

    \b
    Examples:
      rsllm list
      rsllm ls qwen
      rsllm list --json | jq -r '.models[].name'
    """
    with connect() as client:
        models = matching(client.tags(), prefix)
    if as_json:
        print_json({"models": models})
    else:
        click.echo(table_of(models))


def matching(models: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Those whose names begin so."""
    return [model for model in models if str(model.get("name", "")).lower().startswith(prefix.lower())]


def table_of(models: list[dict[str, Any]]) -> str:
    """The list as a table."""
    now = datetime.now(UTC)
    rows = (
        [
            str(model.get("name", "")),
            str(model.get("digest", ""))[:12],
            "-" if model.get("remote_model") else human_bytes(int(model.get("size") or 0)),
            ago(parse_time(str(model.get("modified_at", ""))), now),
        ]
        for model in models
    )
    return columns(("NAME", "ID", "SIZE", "MODIFIED"), rows)
