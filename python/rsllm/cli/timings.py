"""What happened during an answer and how long it took, in Ollama's words: what `--verbose` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rsllm.cli.common import format_duration

if TYPE_CHECKING:
    from rsllm.model import Model
    from rsllm.streams import Stats

__all__ = ["local_timings", "server_timings"]


def local_timings(model: Model, stats: Stats) -> list[tuple[str, str]]:
    """Of an answer in this process."""
    info = model.info()
    rates = (stats.prompt_tokens_per_second or 0.0, stats.generated_tokens_per_second or 0.0)
    lines = _timings(
        info["load_ns"] + stats.total_ns,
        info["load_ns"],
        (stats.prompt_tokens, stats.cached_tokens, stats.prefill_ns, rates[0]),
        (stats.generated_tokens, stats.decode_ns, rates[1]),
    )
    return [*lines, ("context length", f"{info['context']} token(s), {info['context_reason']}")]


def server_timings(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of an answer of a server, by its last event."""

    def figure(name: str) -> int:
        value = event.get(name)
        return value if isinstance(value, int) else 0

    prompt, cached, prefill = (figure(name) for name in ("prompt_eval_count", "cached_tokens", "prompt_eval_duration"))
    count, decode = figure("eval_count"), figure("eval_duration")
    return _timings(
        figure("total_duration"),
        figure("load_duration"),
        (prompt, cached, prefill, (prompt - cached) * 1e9 / prefill if prefill else 0.0),
        (count, decode, count * 1e9 / decode if decode else 0.0),
    )


def _timings(
    total: int, load: int, prompt: tuple[int, int, int, float], answer: tuple[int, int, float]
) -> list[tuple[str, str]]:
    """What happened and how long it took, in Ollama's words and one of ours; what is nothing is left out."""
    lines = [
        ("total duration", format_duration(total), total),
        ("load duration", format_duration(load), load),
        ("prompt eval count", f"{prompt[0]} token(s)", prompt[0]),
        ("prompt cached count", f"{prompt[1]} token(s)", prompt[1]),
        ("prompt eval duration", format_duration(prompt[2]), prompt[2]),
        ("prompt eval rate", f"{prompt[3]:.2f} tokens/s", prompt[3]),
        ("eval count", f"{answer[0]} token(s)", answer[0]),
        ("eval duration", format_duration(answer[1]), answer[1]),
        ("eval rate", f"{answer[2]:.2f} tokens/s", answer[2]),
    ]
    return [(label, text) for label, text, value in lines if value]
