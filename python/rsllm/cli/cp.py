"""`rsllm cp`: another name for a model."""

from __future__ import annotations

import click

from rsllm.cli.common import complete_models
from rsllm.cli.ondemand import connect

__all__ = ["command"]


@click.command("cp")
@click.argument("source", shell_complete=complete_models)
@click.argument("destination")
def command(source: str, destination: str) -> None:
    """Give the model SOURCE the name DESTINATION as well; both share their files.

    \b
    Examples:
      rsllm cp qwen3:0.6b gpt-3.5-turbo
    """
    with connect() as client:
        client.copy(source, destination)
    click.echo(f"copied '{source}' to '{destination}'")
