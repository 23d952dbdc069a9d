"""`rsllm rm`: remove models."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from rsllm.cli.common import complete_models
from rsllm.cli.ondemand import connect
from rsllm.errors import ModelNotFoundError, RsllmError
from rsllm.refs import DEMO, is_demo

if TYPE_CHECKING:
    from rsllm.client import Client

__all__ = ["command"]


@click.command("rm")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_models)
def command(models: tuple[str, ...]) -> None:
    """Remove each MODEL, and the files that no other one needs. A loaded one is unloaded first.

    With `demo` goes what was fetched of it.

    \b
    Examples:
      rsllm rm qwen3:0.6b
      rsllm rm llama3.2 gemma3:270m
    """
    with connect() as client:
        for model in models:
            with contextlib.suppress(RsllmError):  # a damaged one cannot be found for unloading, but removed
                client.unload(model)
            _delete(client, model)
            click.echo(f"deleted '{model}'")


def _delete(client: Client, model: str) -> None:
    forgotten = False
    if is_demo(model):
        from rsllm.refs.pypi import forget

        forgotten = forget(DEMO.removeprefix("pypi:"))
    try:
        client.delete(model)
    except ModelNotFoundError:
        if not forgotten:
            raise
