"""`rsllm list`: the models of the store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from rsllm.cli.common import json_option, print_json, sections
from rsllm.cli.ondemand import connect
from rsllm.cli.tables import ago, columns, human_bytes, parse_time

__all__ = ["command", "damage", "described", "matching", "table_of"]


@click.command("list")
@click.argument("prefix", required=False, default="")
@json_option
def command(prefix: str, as_json: bool) -> None:
    """List the models there are, the newest first; with PREFIX those whose names begin so, in any case.

    A model that cannot be run, because its manifest is damaged or a file of it is missing, has the size "damaged", and
    a line on standard error says why.

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
        for line in damage(models):
            click.echo(line, err=True)


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
            _size(model),
            ago(parse_time(str(model.get("modified_at", ""))), now),
        ]
        for model in models
    )
    return columns(("NAME", "ID", "SIZE", "MODIFIED"), rows)


def _size(model: dict[str, Any]) -> str:
    if model.get("error"):
        return "damaged"
    return "-" if model.get("remote_model") else human_bytes(int(model.get("size") or 0))


def damage(models: list[dict[str, Any]]) -> list[str]:
    """A line for each model that cannot be run: why, and what to do."""
    return [
        f"Warning: {model['name']} is damaged: {model['error']}; "
        f"pull or create it again, or remove it with `rsllm rm {model['name']}`"
        for model in models
        if model.get("error")
    ]


def described(reply: dict[str, Any]) -> str:
    """What a server says of a model, in sections."""
    details, info = reply.get("details") or {}, reply.get("model_info") or {}
    architecture = str(info.get("general.architecture") or details.get("family") or "")
    rows = [
        ("architecture", architecture),
        ("parameters", str(details.get("parameter_size") or "")),
        ("context length", str(info.get(f"{architecture}.context_length") or details.get("context_length") or "")),
        (
            "embedding length",
            str(info.get(f"{architecture}.embedding_length") or details.get("embedding_length") or ""),
        ),
        ("quantization", str(details.get("quantization_level") or "")),
    ]
    parameters = [line.split(None, 1) for line in str(reply.get("parameters") or "").splitlines() if line.strip()]
    return sections(
        {
            "Model": [(name, value) for name, value in rows if value],
            "Capabilities": [(str(word), "") for word in reply.get("capabilities") or []],
            "Parameters": [(line[0], line[1] if len(line) > 1 else "") for line in parameters],
            "System": _beginning(reply.get("system")),
            "License": _beginning(reply.get("license")),
        }
    )


def _beginning(text: Any) -> list[tuple[str, str]]:
    """The first two lines of a text."""
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    return [(line, "") for line in [*lines[:2], *(["..."] if len(lines) > 2 else [])]]
