"""`rsllm tokenize`: text as the model sees it."""

from __future__ import annotations

import sys
from typing import Any

import click

from rsllm.cli.common import json_option, model_argument, print_json, read_stdin, table

__all__ = ["command"]

# No text is generated: a small context keeps the KV cache small.
_CONTEXT = 64


@click.command("tokenize")
@model_argument
@click.argument("text", required=False)
@click.option("--special", is_flag=True, help="Add the BOS and EOS tokens the model asks for.")
@click.option("--parse-special", is_flag=True, help="Read control tokens in the text as such.")
@click.option("--ids", is_flag=True, help="Print the ids only, on one line.")
@json_option
def command(model: str, text: str | None, special: bool, parse_special: bool, ids: bool, as_json: bool) -> None:
    """Split TEXT, or standard input, into MODEL's tokens.

    \b
    Examples:
      rsllm tokenize demo "Hello, world"
      rsllm tokenize --json demo < README.md
      rsllm tokenize --parse-special --ids demo "<|im_start|>user"
    """
    if ids and as_json:
        raise click.UsageError("give one of --ids and --json")
    if text is None:
        if sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty():
            raise click.UsageError("there is no text: give it as an argument or on standard input")
        text = read_stdin()

    import rsllm

    with rsllm.load(model, context=_CONTEXT) as loaded:
        tokens = loaded.tokenize(text, add_special=special, parse_special=parse_special)
        pieces = [loaded.token_bytes(token) for token in tokens]
    if as_json:
        print_json(
            {
                "count": len(tokens),
                "tokens": [{"id": token, "piece": _piece(piece)} for token, piece in zip(tokens, pieces, strict=True)],
            }
        )
    elif ids:
        click.echo(" ".join(map(str, tokens)))
    else:
        rows = (
            [str(token), repr(piece.decode(errors="backslashreplace"))]
            for token, piece in zip(tokens, pieces, strict=True)
        )
        click.echo(table(rows, ("id", "piece"), right=(0,)))
        click.echo(f"{len(tokens)} token(s)")


def _piece(piece: bytes) -> Any:
    """Text, or the bytes where they are not text by themselves."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
