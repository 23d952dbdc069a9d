"""`rsllm gguf`: look into model files, split them into numbered parts, and merge the parts again."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import HELP_OPTIONS, json_option, print_json, sections, table
from rsllm.errors import OptionError, RsllmError

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile

__all__ = ["command"]

_SIZE = re.compile(r"(\d+)\s*([KMG]?)B?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_TEXT_LIMIT = 60
_ARRAY_SHOWN = 4


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A size such as `2G`, in powers of 1000."""

    name = "size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        match = _SIZE.fullmatch(str(value).strip())
        size = int(match[1]) * _UNITS[match[2].upper()] if match and len(match[1]) < 20 else 0
        if not size:
            self.fail(f"{value!r} is not a size such as 500M or 2G", parameter, context)
        return size


@click.group("gguf", context_settings=HELP_OPTIONS)
def command() -> None:
    """Look into GGUF files, split them, and merge parts.

    \b
    Examples:
      rsllm gguf inspect ./model.gguf
      rsllm gguf split --max-size 2G ./model.gguf
      rsllm gguf merge ./model-00001-of-00003.gguf
    """


@command.command("inspect", short_help="Header, metadata and tensors of a file.")
@click.argument("path", metavar="FILE")
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Show the header, the metadata and the tensors of FILE, of a split one those of all its parts.

    \b
    Examples:
      rsllm gguf inspect ./model.gguf
      rsllm gguf inspect --json ./model.gguf | jq .tensors[0]
    """
    file = _open(path)
    tensors = list(file.tensors.values())
    header = {
        "version": file.version,
        "alignment": file.alignment,
        "files": list(file.files),
        "file_bytes": file.file_bytes,
        "tensor_count": len(tensors),
    }
    if as_json:
        listed = [
            {"name": one.name, "type": one.type, "shape": list(one.shape), "n_bytes": one.n_bytes} for one in tensors
        ]
        print_json({"header": header, "metadata": dict(file.metadata), "tensors": listed})
        return
    rows = [(name.replace("_", " "), _short(value)) for name, value in header.items()]
    metadata = [(key, _short(value)) for key, value in file.metadata.items()]
    click.echo(sections({"Header": rows, "Metadata": metadata}) + "\n\n  Tensors")
    cells = ([one.name, one.type, "x".join(map(str, one.shape)), f"{one.n_bytes:,}"] for one in tensors)
    for line in table(cells, ("name", "type", "shape", "bytes"), right=(3,)).splitlines():
        click.echo("    " + line)


@command.command("split", short_help="Write a file as numbered parts.")
@click.argument("path", metavar="FILE")
@click.argument("target", required=False, metavar="[PREFIX]")
@click.option("--max-size", type=_Size(), metavar="SIZE", help="Bytes of tensors in a part: 500M, 2G (default: 2G).")
@click.option("--max-tensors", type=click.IntRange(1), metavar="N", help="Tensors in a part.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def split(path: str, target: str | None, max_size: int | None, max_tensors: int | None, force: bool) -> None:
    """Write FILE as numbered parts, PREFIX-00001-of-0000N.gguf; without PREFIX beside FILE, under its name.

    \b
    Examples:
      rsllm gguf split ./model.gguf
      rsllm gguf split --max-size 500M ./model.gguf ./parts/model
      rsllm gguf split --max-tensors 128 ./model.gguf
    """
    from rsllm import shards

    file = _open(path)
    if max_size is None and max_tensors is None:
        max_size = 2 * _UNITS["G"]
    parts = shards.plan(file, max_bytes=max_size, max_tensors=max_tensors)
    prefix = Path(target or path.removesuffix(".gguf")).expanduser()
    names = [prefix.parent / shards.shard_name(prefix.name, number + 1, len(parts)) for number in range(len(parts))]
    _write({name: shards.shard(file, parts, number) for number, name in enumerate(names)}, file, force)


@command.command("merge", short_help="Write numbered parts as one file.")
@click.argument("path", metavar="PART")
@click.argument("target", required=False, metavar="[FILE]")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def merge(path: str, target: str | None, force: bool) -> None:
    """Write the split file that PART is any part of as one file, FILE; without FILE beside PART, under its name.

    \b
    Examples:
      rsllm gguf merge ./model-00001-of-00003.gguf
      rsllm gguf merge ./model-00001-of-00003.gguf ./whole.gguf
    """
    from rsllm import shards

    file = _open(path)
    match = shards.SHARD_NAME.fullmatch(Path(path).name)
    if target is not None:
        whole = Path(target).expanduser()
    elif match is None:
        raise OptionError(f"{Path(path).name} is no part of a split file", hint="parts are name-00001-of-00003.gguf")
    else:
        whole = Path(path).expanduser().parent / f"{match['stem']}.gguf"
    _write({whole: shards.joined(file)}, file, force)


def _open(path: str) -> GgufFile:
    from rsllm import gguf

    return gguf.open(Path(path).expanduser())


def _write(contents: Mapping[Path, Iterable[bytes]], source: GgufFile, force: bool) -> None:
    """Write the files beside their places, check them, and only then put them there; a failure leaves nothing."""
    from rsllm.shards import open_linked
    from rsllm.store.files import NewFile, explained, require_space

    sources = {Path(name).resolve() for name in source.files}
    for path in contents:
        if path.resolve() in sources:
            raise RsllmError(f"{path} is what is read: name another file")
        if path.exists() and not force:
            raise RsllmError(f"{path} is there already", hint="--force replaces it")
    folder = next(iter(contents)).parent
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(folder, "write the file"))
        folder.mkdir(parents=True, exist_ok=True)
        require_space(folder, source.file_bytes, "write the file")
        written = {}
        for path, pieces in contents.items():
            written[path] = new = stack.enter_context(NewFile(folder, prefix=f".{path.name}-"))
            for piece in pieces:
                new.write(piece)
            new.flush()
        links = stack.enter_context(tempfile.TemporaryDirectory(prefix="rsllm-"))
        open_linked(Path(links) / "check", {path.name: new.path for path, new in written.items()})
        for path, new in written.items():
            new.place(path)
    for path in contents:
        click.echo(os.fspath(path))


def _short(value: Any) -> str:
    if isinstance(value, list):
        first = ", ".join(_short(item) for item in value[:_ARRAY_SHOWN])
        return f"[{first}{', …' if len(value) > _ARRAY_SHOWN else ''}] ({len(value)})"
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"
