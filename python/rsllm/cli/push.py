"""`rsllm push`: publish a model."""

from __future__ import annotations

import click

from rsllm.cli.common import complete_models
from rsllm.cli.ondemand import connect
from rsllm.cli.progress import follow
from rsllm.errors import RsllmError

__all__ = ["command"]


@click.command("push")
@click.argument("model", shell_complete=complete_models)
@click.option("--insecure", is_flag=True, help="Speak http to the registry instead of https.")
@click.option("--json", "as_json", is_flag=True, help="Print each step as a line of JSON.")
def command(model: str, insecure: bool, as_json: bool) -> None:
    """Send MODEL to the registry in its name.

    \b
    Examples:
      rsllm push myname/mymodel
      rsllm push --insecure localhost:5000/me/mymodel
    """
    from rsllm.store.name import ModelName

    name = ModelName.parse(model)
    with connect() as client:
        try:
            follow(client.push(model, insecure=insecure, typed=True), as_json=as_json)
        except RsllmError as error:
            if "access denied" in str(error) or "unauthorized" in str(error):
                error.hint = (
                    "you are not authorized to push to this namespace, create the model under a namespace you own"
                )
            raise
    if name.is_default_host and not as_json:
        click.echo(f"\nYou can find your model at:\n\n\thttps://ollama.com/{name.short.removesuffix(':latest')}")
