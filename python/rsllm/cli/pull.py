"""`rsllm pull`: get a model."""

from __future__ import annotations

import click

from rsllm.cli.ondemand import connect
from rsllm.cli.progress import follow

__all__ = ["command"]


@click.command("pull")
@click.argument("model")
@click.option("--insecure", is_flag=True, help="Speak http to the registry instead of https.")
@click.option("--json", "as_json", is_flag=True, help="Print each step as a line of JSON.")
def command(model: str, insecure: bool, as_json: bool) -> None:
    """Get MODEL from its registry. What has come of it before is not fetched again.

    Ctrl-C stops it; the next pull goes on from there.

    \b
    Examples:
      rsllm pull qwen3:0.6b
      rsllm pull hf.co/unsloth/Qwen3-0.6B-GGUF:Q4_K_M
      rsllm pull --json llama3.2 | jq -r .status
    """
    with connect() as client:
        follow(client.pull(model, insecure=insecure), as_json=as_json)
