"""`rsllm bench`: how fast a model is here, and how far that is from what the memory can deliver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from rsllm.cli.common import ListOf, engine_options, json_option, model_argument, print_json, table

__all__ = ["command"]


@dataclass(frozen=True)
class _Row:
    """One measurement. Bandwidth belongs to decoding, which reads all weights for each token."""

    threads: int
    test: str
    tokens: int
    depth: int
    tokens_per_second: float
    spread: float
    """Largest minus smallest rate of the repetitions, as a share of the median."""
    gigabytes_per_second: float | None
    bandwidth_share: float | None


@click.command("bench")
@model_argument
@click.option("-p", "--prompt", type=ListOf(), default="128,512", show_default=True, help="Prefill lengths, in tokens.")
@click.option("-n", "--generate", type=ListOf(), default="64", show_default=True, help="Tokens to decode.")
@click.option("-d", "--depth", type=ListOf(), default="0", show_default=True, help="Context before each measurement.")
@click.option("-t", "--thread-counts", type=ListOf(1), help="Thread counts to try, one after another.")
@click.option(
    "-r", "--repetitions", type=click.IntRange(1, 1000), default=3, show_default=True, help="Per measurement."
)
@engine_options
@json_option
def command(
    model: str,
    prompt: list[int],
    generate: list[int],
    depth: list[int],
    thread_counts: list[int] | None,
    repetitions: int,
    load_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Measure prefill and decoding of MODEL.

    Rates are medians. For decoding the table gives the bytes of weights read per second, and their share of what the
    same number of threads reads from the same file when they do nothing else.

    \b
    Examples:
      rsllm bench demo
      rsllm bench -p 512 -n 128 -d 0,2048 -t 1,2,4 ./model.gguf
      rsllm bench --json demo > record.json
    """
    from rsllm.refs import resolve

    path = str(resolve(model))
    if load_options["context"] is None:
        load_options["context"] = max([1, *prompt, *generate]) + max([0, *depth]) + 1
    rows: list[_Row] = []
    described: dict[str, Any] = {}
    for threads in thread_counts or [load_options["threads"]]:
        more, described = _measure(path, {**load_options, "threads": threads}, prompt, generate, depth, repetitions)
        rows += more
    if as_json:
        print_json({"model": path, **described, "repetitions": repetitions, "rows": [asdict(row) for row in rows]})
        return
    click.echo(f"{path}: {described['architecture']}, {described['isa']}, KV {described['kv_type']}")
    click.echo(table(map(_cells, rows), ("threads", "test", "depth", "tokens/s", "±", "GB/s", "of read"), range(2, 7)))


def _measure(
    path: str, load_options: dict[str, Any], prompt: list[int], generate: list[int], depth: list[int], repetitions: int
) -> tuple[list[_Row], dict[str, Any]]:
    import rsllm
    from rsllm import machine

    rows = []
    with rsllm.load(path, **load_options) as loaded:
        info = loaded.info()
        threads = info["threads"]
        bandwidth = machine.read_bandwidth(path, threads)
        for before in depth:
            for tokens in filter(None, prompt):
                result = loaded.bench(prompt=tokens, depth=before, repetitions=repetitions)
                rate = result.prompt_tokens_per_second
                spread = _spread(result.prompt_ns)
                rows.append(_Row(threads, f"prefill {tokens}", tokens, before, rate, spread, None, None))
            for tokens in filter(None, generate):
                result = loaded.bench(generate=tokens, depth=before, repetitions=repetitions)
                rate = result.generate_tokens_per_second
                spread = _spread(result.generate_ns)
                read = rate * info["decode_bytes_per_token"]
                share = read / bandwidth if bandwidth else None
                rows.append(_Row(threads, f"decode {tokens}", tokens, before, rate, spread, read / 1e9, share))
    names = ("architecture", "isa", "kv_type", "weight_bytes", "decode_bytes_per_token", "parameters", "context")
    return rows, {name: info[name] for name in names}


def _spread(nanoseconds: list[int]) -> float:
    """(max rate - min rate) / median rate, from the times."""
    if not all(nanoseconds):
        return 0.0
    rates = sorted(1 / time for time in nanoseconds)
    return (rates[-1] - rates[0]) / rates[len(rates) // 2]


def _cells(row: _Row) -> list[str]:
    return [
        str(row.threads),
        row.test,
        str(row.depth),
        f"{row.tokens_per_second:.1f}",
        f"{row.spread:.0%}",
        "" if row.gigabytes_per_second is None else f"{row.gigabytes_per_second:.1f}",
        "" if row.bandwidth_share is None else f"{row.bandwidth_share:.0%}",
    ]
