"""What the commands share: option types and decorators, tables, durations, sizes, and reading standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from rsllm.errors import OptionError, RsllmError
from rsllm.options import OPTIONS, parse_option

__all__ = [
    "HELP_OPTIONS",
    "ListOf",
    "complete_models",
    "engine_options",
    "format_count",
    "format_duration",
    "json_option",
    "model_argument",
    "print_json",
    "read_stdin",
    "sampling_options",
    "sections",
    "table",
]

HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Function = TypeVar("Function", bound=Callable[..., Any])

# Flags of the sampling options: those that Ollama's users know come first in the name list.
_FLAGS = {
    "max_tokens": ("--num-predict", "--max-tokens"),
    "temperature": ("--temperature",),
    "top_k": ("--top-k",),
    "top_p": ("--top-p",),
    "min_p": ("--min-p",),
    "typical_p": ("--typical-p",),
    "repeat_penalty": ("--repeat-penalty",),
    "repeat_last_n": ("--repeat-last-n",),
    "presence_penalty": ("--presence-penalty",),
    "frequency_penalty": ("--frequency-penalty",),
    "seed": ("--seed",),
    "stop": ("--stop",),
}
# Ollama's names for what is set when the model is loaded, with the flag that does it.
LOAD_OPTIONS = {"num_ctx": "--num-ctx", "num_thread": "--threads", "use_mmap": "--no-mmap", "num_gpu": "nothing yet"}


class _Sampling(click.ParamType):  # type: ignore[type-arg]
    """The value of a sampling option, checked against the one table."""

    def __init__(self, option: str) -> None:
        self.option = option
        self.name = "text" if option == "stop" else "number"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return parse_option(self.option, value)
        except OptionError as error:
            self.fail(str(error).removeprefix(f"option {self.option} "), parameter, context)


class _Assignment(click.ParamType):  # type: ignore[type-arg]
    """`name=value` for any option of the table."""

    name = "name=value"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        name, equals, text = str(value).partition("=")
        name = name.strip()
        if not equals:
            self.fail(f"{value!r} is not of the form name=value", parameter, context)
        if name in LOAD_OPTIONS:
            self.fail(f"{name} is set when the model is loaded: use {LOAD_OPTIONS[name]}", parameter, context)
        try:
            return parse_option(name, text)
        except OptionError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self.fail(f"{error}{hint}", parameter, context)


class ListOf(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers separated by commas: `128,512`."""

    name = "n,…"

    def __init__(self, low: int = 0) -> None:
        self.low = low

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            numbers = [int(part) for part in str(value).split(",") if part.strip()]
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 128,512", parameter, context)
        if any(not self.low <= number < 2**31 for number in numbers):
            self.fail(f"each number must be at least {self.low}", parameter, context)
        return numbers


def sampling_options(function: Function) -> Function:
    """The sampling flags and `-o`; the command gets them as one dictionary `options`."""

    def gathered(*args: Any, assignments: Sequence[tuple[str, Any]], **kwargs: Any) -> Any:
        options: dict[str, Any] = {}
        given = [kwargs.pop(f"option_{name}") for name in _FLAGS]
        for name, value in (*(pair for pairs in given for pair in pairs), *assignments):
            options[name] = [*options.get(name, []), *value] if name == "stop" else value
        return function(*args, options=options, **kwargs)

    gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
    gathered.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = click.option(
        "-o",
        "assignments",
        multiple=True,
        type=_Assignment(),
        metavar="NAME=VALUE",
        help="Any option by name: those above, also under Ollama's names, ignore_eos and logprobs.",
    )(gathered)
    for name, flags in reversed(_FLAGS.items()):
        # `multiple`, so that the last one of a repeated flag counts and `--stop` gathers.
        decorated = click.option(
            *flags,
            f"option_{name}",
            multiple=True,
            type=_Sampling(name),
            metavar="TEXT" if name == "stop" else "N" if isinstance(OPTIONS[name].default, int | None) else "X",
            help=_sentence(OPTIONS[name].help, OPTIONS[name].default),
        )(decorated)
    return decorated  # type: ignore[no-any-return]


def engine_options(function: Function) -> Function:
    """How a model is loaded; the command gets the arguments of `rsllm.load` as one dictionary `load_options`."""

    def gathered(
        *args: Any,
        num_ctx: int | None,
        threads: int | None,
        kv_type: str | None,
        isa: str | None,
        mmap: bool,
        **kwargs: Any,
    ) -> Any:
        from rsllm.config import config

        load_options = {
            "context": num_ctx or config().context_length,
            "threads": threads,
            "kv_type": kv_type or config().kv_type or "f16",
            "isa": isa,
            "mmap": mmap,
        }
        return function(*args, load_options=load_options, **kwargs)

    gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
    gathered.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = gathered
    for option in reversed(
        (
            click.option(
                "--num-ctx",
                "--context",
                type=click.IntRange(1, 2**31 - 1),
                metavar="N",
                help="Context in tokens (default: what the model and half of the free memory allow).",
            ),
            click.option(
                "--threads",
                "--num-thread",
                type=click.IntRange(1, 4096),
                metavar="N",
                help="Threads that compute (default: the physical cores).",
            ),
            click.option(
                "--kv-type",
                type=click.Choice(["f16", "bf16", "f32", "q8_0", "q4_0"]),
                help="Type of the KV cache (default: f16).",
            ),
            click.option("--isa", metavar="NAME", help="Force an instruction set; `rsllm doctor` lists them."),
            click.option("--mmap/--no-mmap", default=True, help="Map the file (default), or read it into memory."),
        )
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def model_argument(function: Function) -> Function:
    """The argument MODEL; the shell completes it by names of the store."""
    return click.argument("model", shell_complete=complete_models)(function)


def complete_models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Names of the store that begin so, and files."""
    from click.shell_completion import CompletionItem

    from rsllm.store.store import Store

    try:
        names = [entry.name.short for entry in Store.default(read_only=True).names()]
    except (RsllmError, OSError):  # a shell that completes is no place for errors
        names = []
    found = [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]
    # Files come first: in bash that item clears what stands before it.
    return [CompletionItem(incomplete, type="file"), *found]


def json_option(function: Function) -> Function:
    """The flag `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)


def read_stdin() -> str:
    """All of standard input, which must be UTF-8; empty where there is none."""
    if sys.stdin is None or sys.stdin.closed:
        return ""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RsllmError(f"standard input is not valid UTF-8: byte {error.start} is {byte:#04x}") from None


def print_json(value: Any) -> None:
    """One JSON document; characters as they are, bytes that are no text escaped."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_json_default))


def _json_default(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="backslashreplace")
    return str(value)


def table(rows: Iterable[Sequence[str]], header: Sequence[str], right: Iterable[int] = ()) -> str:
    """Columns padded to their widest cell; those whose index is in `right` are aligned there."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    aligned = set(right)
    lines = (
        "  ".join(
            cell.rjust(width) if column in aligned else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def sections(content: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """Titles with rows of name and value under each, as `ollama show` prints them."""
    blocks = []
    for title, rows in content.items():
        pairs = list(rows)
        if pairs:
            width = max(len(name) for name, _ in pairs)
            lines = (f"    {name.ljust(width)}    {value}".rstrip() for name, value in pairs)
            blocks.append(f"  {title}\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def format_count(count: int) -> str:
    """A count in a few characters: `135M`, `1.2B`, `4096`."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= size:
            text = f"{count / size:.2f}" if count < 10 * size else f"{count / size:.1f}"
            return text.rstrip("0").rstrip(".") + unit
    return str(count)


def format_duration(nanoseconds: int) -> str:
    """A duration as Go writes it: `1.234567s`, `45.6ms`, `2m3s`."""
    if nanoseconds < 1_000_000_000:
        for size, unit in ((1_000_000, "ms"), (1_000, "µs")):
            if nanoseconds >= size:
                return _trim(f"{nanoseconds / size:.6f}") + unit
        return f"{nanoseconds}ns" if nanoseconds else "0s"
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = _trim(f"{rest / 1e9:.9f}") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".")


def _sentence(text: str, default: Any) -> str:
    default_text = "" if default is None or default == () else f" (default: {default})"
    return text[0].upper() + text[1:] + default_text + "."
