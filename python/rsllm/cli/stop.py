"""`rsllm stop`: unload a model."""

from __future__ import annotations

import click

from rsllm.cli.common import model_argument
from rsllm.cli.ondemand import connect
from rsllm.errors import ModelNotFoundError, ServerUnreachableError

__all__ = ["command"]


@click.command("stop")
@model_argument
def command(model: str) -> None:
    """Unload MODEL as soon as nobody uses it.

    \b
    Examples:
      rsllm stop qwen3:0.6b
    """
    try:
        with connect(start=False) as client:
            client.unload(model)
    except (ModelNotFoundError, ServerUnreachableError) as error:
        unreachable = isinstance(error, ServerUnreachableError)
        hint = "no server is running, so nothing is loaded" if unreachable else "`rsllm ps` lists what is loaded"
        raise ModelNotFoundError(f'couldn\'t find model "{model}" to stop', hint=hint) from error
