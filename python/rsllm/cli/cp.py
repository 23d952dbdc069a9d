"""`rsllm cp`: another name for a model."""

from __future__ import annotations

import click

from rsllm.cli.common import complete_models
from rsllm.cli.ondemand import connect
from rsllm.cli.progress import follow
from rsllm.errors import ModelNotFoundError
from rsllm.refs import is_demo

__all__ = ["command"]


@click.command("cp")
@click.argument("source", shell_complete=complete_models)
@click.argument("destination")
def command(source: str, destination: str) -> None:
    """Give the model SOURCE the name DESTINATION as well; both share their files. `demo` is pulled where it is missing.

    \b
    Examples:
      rsllm cp qwen3:0.6b gpt-3.5-turbo
      rsllm cp demo smollm2
    """
    with connect() as client:
        try:
            client.copy(source, destination)
        except ModelNotFoundError:
            if not is_demo(source):
                raise
            follow(client.pull(source, typed=True))
            client.copy(source, destination)
    click.echo(f"copied '{source}' to '{destination}'")
