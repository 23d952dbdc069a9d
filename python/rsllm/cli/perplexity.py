"""`rsllm perplexity`: how well a model foretells a text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import engine_options, json_option, model_argument, print_json, read_stdin
from rsllm.errors import OptionError

if TYPE_CHECKING:
    from rsllm.model import Model

__all__ = ["command"]

_WINDOW = 512


@click.command("perplexity")
@model_argument
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Look at the first N windows only.")
@json_option
@engine_options
def command(model: str, file: str | None, limit: int | None, as_json: bool, load_options: dict[str, Any]) -> None:
    """Compute MODEL's perplexity on the text in FILE, or on standard input: lower is better.

    The text is cut into windows of --num-ctx tokens (512 unless given), each read by itself. Tokens in the second half
    of a window count, since those before them had little to go by.

    \b
    Examples:
      rsllm perplexity demo README.md
      rsllm perplexity --num-ctx 1024 --json ./model.gguf text.txt
      cat text.txt | rsllm perplexity demo
    """
    text = read_stdin() if file is None else Path(file).read_text(encoding="utf-8")
    window = load_options["context"] or _WINDOW
    import rsllm
    from rsllm.refs.progress import default_progress

    losses: list[float] = []
    with rsllm.load(model, **{**load_options, "context": window}) as loaded:
        windows = _windows(loaded, text, window)[:limit]
        if not windows:
            raise OptionError(
                f"the text has less than a window of {window} tokens", hint="give --num-ctx a smaller number"
            )
        progress = default_progress()
        progress.start(f"{len(windows)} windows", None)
        try:
            for tokens in windows:
                losses += _losses(loaded, tokens)
        finally:
            progress.finish()
    mean = math.fsum(losses) / len(losses)
    spread = math.sqrt(math.fsum((loss - mean) ** 2 for loss in losses) / len(losses) / len(losses))
    perplexity, error = math.exp(mean), math.exp(mean) * spread
    if as_json:
        counts = {"tokens": len(losses), "windows": len(windows), "window": window}
        print_json({"model": model, "perplexity": round(perplexity, 6), "error": round(error, 6), **counts})
    else:
        click.echo(f"{perplexity:.4f} ± {error:.4f}, over {len(losses)} tokens in {len(windows)} windows")


def _windows(loaded: Model, text: str, length: int) -> list[list[int]]:
    """The whole windows of a text; each begins with what the model wants at the beginning."""
    tokens = loaded.tokenize(text)
    specially = loaded.tokenize(text, add_special=True)
    head = specially[:1] if specially[1 : len(tokens) + 1] == tokens else []
    body = length - len(head)
    return [head + tokens[at : at + body] for at in range(0, len(tokens) - body + 1, body)] if body > 0 else []


def _losses(loaded: Model, tokens: list[int]) -> list[float]:
    """The negative log-likelihood of each token in the second half of a window."""
    import numpy

    first = max(1, len(tokens) // 2)
    rows = loaded.logits(tokens)[first - 1 : -1].astype(numpy.float64)
    rows -= rows.max(axis=1, keepdims=True)
    chosen = rows[numpy.arange(len(rows)), tokens[first:]]
    losses: list[float] = (numpy.log(numpy.exp(rows).sum(axis=1)) - chosen).tolist()
    return losses
