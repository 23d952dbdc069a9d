"""`rsllm quantize`: not yet."""

from __future__ import annotations

import click

from rsllm.errors import RsllmError

__all__ = ["command"]


@click.command("quantize", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, metavar="MODEL TYPE [OUTPUT]")
def command(arguments: tuple[str, ...]) -> None:
    """Write MODEL with smaller weights. Not yet: pull or name a file that is quantized already.

    \b
    Examples:
      rsllm quantize ./model-f16.gguf Q4_K_M ./model-q4.gguf
    """
    raise RsllmError("models cannot be quantized yet", hint="pull a GGUF that is quantized already")
