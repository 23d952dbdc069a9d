"""`rsllm rm`: remove models."""

from __future__ import annotations

import contextlib

import click

from rsllm.cli.common import complete_models
from rsllm.cli.ondemand import connect
from rsllm.errors import RsllmError

__all__ = ["command"]


@click.command("rm")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_models)
def command(models: tuple[str, ...]) -> None:
    """Remove each MODEL, and the files that no other one needs. A loaded one is unloaded first.

    \b
    Examples:
      rsllm rm qwen3:0.6b
      rsllm rm llama3.2 gemma3:270m
    """
    with connect() as client:
        for model in models:
            with contextlib.suppress(RsllmError):  # a damaged one cannot be found for unloading, but removed
                client.unload(model)
            client.delete(model)
            click.echo(f"deleted '{model}'")
