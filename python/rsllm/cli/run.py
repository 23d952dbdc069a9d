"""`rsllm run`: one answer, or a conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import engine_options, format_duration, model_argument, read_stdin, sampling_options

if TYPE_CHECKING:
    from rsllm.model import Model
    from rsllm.streams import Stats, TokenStream

__all__ = ["command", "print_timings", "stream_to"]


@click.command("run")
@model_argument
@click.argument("prompt", nargs=-1)
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option("--raw", is_flag=True, help="Send the prompt as it is, without the model's chat template.")
@click.option("--verbose", is_flag=True, help="Print timings to standard error.")
@click.option("--nowordwrap", is_flag=True, help="Accepted for compatibility: text is never wrapped here.")
@sampling_options
@engine_options
def command(
    model: str,
    prompt: tuple[str, ...],
    system: str | None,
    raw: bool,
    verbose: bool,
    nowordwrap: bool,
    options: dict[str, Any],
    load_options: dict[str, Any],
) -> None:
    """Run MODEL on PROMPT, or talk to it.

    MODEL is a path to a .gguf file, `demo`, or `pypi:package`. The prompt is what stands on the command line; text from
    standard input goes before it. With neither, and on a terminal, a conversation starts.

    \b
    Examples:
      rsllm run demo "Why is the sky blue?"
      rsllm run ./model.gguf --temperature 0 --num-predict 64 "Count to ten."
      git diff | rsllm run demo "Write a commit message for this change."
      rsllm run demo                      start a conversation; /? lists its commands
    """
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    interactive = not prompt and _is_terminal(sys.stdin) and _is_terminal(sys.stdout)
    text = None if interactive else _prompt_text(prompt)

    import rsllm

    with rsllm.load(model, **load_options) as loaded:
        if verbose:
            for warning in loaded.info()["warnings"]:
                click.echo(f"Warning: {warning}", err=True)
        _note_long_context(loaded)
        if text is None:
            from rsllm.cli.repl import Repl

            Repl(loaded, system=system, options=options, verbose=verbose, raw=raw).run()
        elif text:
            stream = loaded.stream(text, **options) if raw else loaded.chat(system=system).stream(text, **options)
            stats = stream_to(stream)
            if verbose:
                print_timings(loaded, stats)


def stream_to(stream: TokenStream) -> Stats:
    """Print the stream as it comes, and a note where it ended for want of room."""
    last = ""
    with stream:
        for token in stream:
            click.echo(token, nl=False)
            last = token or last
    if not last.endswith("\n"):
        click.echo()
    stats = stream.stats
    assert stats is not None, "the stream has ended"
    if stats.finish_reason == "context":
        click.echo("Note: stopped because the context is full; --num-ctx makes it longer", err=True)
    return stats


def print_timings(model: Model, stats: Stats) -> None:
    """What happened and how long it took, on standard error, in Ollama's words and two of ours."""
    info = model.info()
    load_ns = info["load_ns"]
    lines = [
        ("total duration", format_duration(load_ns + stats.total_ns), load_ns + stats.total_ns),
        ("load duration", format_duration(load_ns), load_ns),
        ("prompt eval count", f"{stats.prompt_tokens} token(s)", stats.prompt_tokens),
        ("prompt cached count", f"{stats.cached_tokens} token(s)", stats.cached_tokens),
        ("prompt eval duration", format_duration(stats.prefill_ns), stats.prefill_ns),
        ("prompt eval rate", _rate(stats.prompt_tokens_per_second), stats.prompt_tokens_per_second),
        ("eval count", f"{stats.generated_tokens} token(s)", stats.generated_tokens),
        ("eval duration", format_duration(stats.decode_ns), stats.decode_ns),
        ("eval rate", _rate(stats.generated_tokens_per_second), stats.generated_tokens_per_second),
    ]
    lines.append(("context length", f"{info['context']} token(s), {info['context_reason']}", info["context"]))
    click.echo(err=True)
    for label, text, value in lines:
        if value:
            click.echo(f"{label + ':':<22}{text}", err=True)


def _note_long_context(model: Model) -> None:
    info = model.info()
    if info["context"] > info["training_context"]:
        trained = info["training_context"]
        click.echo(f"Note: the model was trained for {trained} tokens; beyond them answers may degrade", err=True)


def _rate(rate: float | None) -> str:
    return f"{rate or 0:.2f} tokens/s"


def _prompt_text(words: tuple[str, ...]) -> str:
    """Standard input, if it is not a terminal, before the words of the command line, joined by one space."""
    piped = "" if _is_terminal(sys.stdin) else read_stdin()
    if not piped and not words:
        raise click.UsageError("there is no prompt: give one as an argument or on standard input")
    return " ".join([piped, *words] if piped else words)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
