"""`rsllm create`: make a model from a Modelfile. Files are read here and go to the server as blobs."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import json_option
from rsllm.cli.ondemand import connect
from rsllm.cli.progress import follow
from rsllm.errors import RsllmError

if TYPE_CHECKING:
    from rsllm.client import Client
    from rsllm.store.modelfile import Modelfile

__all__ = ["command", "files_of", "gather", "sent"]

_READ_BYTES = 1 << 20
_TELL_SECONDS = 0.1
Event = dict[str, Any]


@click.command("create")
@click.argument("model")
@click.option("-f", "--file", metavar="PATH", help="The Modelfile, or - for standard input (default: ./Modelfile).")
@click.option("-q", "--quantize", metavar="TYPE", help="Not yet: pull or name a file that is quantized already.")
@click.option("--draft-quantize", metavar="TYPE", help="Not yet, as --quantize.")
@click.option("--experimental", is_flag=True, help="Accepted for compatibility: safetensors cannot be converted yet.")
@json_option
def command(
    model: str, file: str | None, quantize: str | None, draft_quantize: str | None, experimental: bool, as_json: bool
) -> None:
    """Make MODEL as a Modelfile says. Without a Modelfile, the GGUF in this folder becomes the model.

    FROM names a model, a GGUF file (of a split one any part), or a folder with GGUF files.

    \b
    Examples:
      rsllm create mine
      rsllm create mine -f ./Modelfile
      echo "FROM ./model.gguf" | rsllm create mine -f -
      rsllm show --modelfile llama3.2 | rsllm create mine -f -
    """
    from rsllm.store.modelfile import parse
    from rsllm.store.name import ModelName

    ModelName.parse(model)
    if quantize or draft_quantize:
        raise RsllmError("models cannot be quantized yet", hint="pull a GGUF that is quantized already")
    text, folder = _read(file)
    recipe = parse(text)
    for warning in recipe.warnings:
        click.echo(warning, err=True)
    request = {"model": model, **recipe.to_request()}
    files = gather(recipe, folder, request)
    with connect() as client:
        follow(sent(client, request, files), as_json=as_json)


def _read(file: str | None) -> tuple[bytes, Path]:
    """The Modelfile, and the folder that its paths start from."""
    if file == "-":
        return (sys.stdin.buffer.read() if sys.stdin is not None else b""), Path()
    path = Path(file or "Modelfile").expanduser()
    try:
        return path.read_bytes(), path.parent
    except FileNotFoundError:
        if file is not None:
            raise RsllmError(f"specified Modelfile wasn't found: {file}") from None
        return b"FROM .", Path()


def gather(recipe: Modelfile, folder: Path, request: Event) -> dict[str, dict[str, Path]]:
    """The files that the Modelfile names, by member of the request; a name of a model goes into `request`."""
    files: dict[str, dict[str, Path]] = {"files": {}, "adapters": {}, "draft_files": {}}
    for value in recipe.all("from"):
        found = _files(folder, value)
        if found is None:
            if "from" in request:
                raise RsllmError(f"two models are named with FROM: {request['from']} and {value}")
            request["from"] = value
        else:
            _add(files["files"], found)
    for name, member in (("adapter", "adapters"), ("draft", "draft_files")):
        for value in recipe.all(name)[-1:]:
            files[member] = _beside(folder, name, value, files["files"])
    return files


def _beside(folder: Path, name: str, value: str, weights: Mapping[str, Path]) -> dict[str, Path]:
    """The file of an ADAPTER or a DRAFT."""
    found = _files(folder, value)
    if found is None:
        raise RsllmError(f"{name.upper()} wants a file, and there is no {value}")
    if {path.resolve() for path in found} & {path.resolve() for path in weights.values()}:
        raise RsllmError(f"{name.upper()} and FROM name the same file: {value}")
    files: dict[str, Path] = {}
    _add(files, found)
    return files


def _add(files: dict[str, Path], found: list[Path]) -> None:
    for path in found:
        name = path.name
        while name in files and files[name] != path:
            name = f"{len(files)}-{name}"
        files[name] = path


def _files(folder: Path, value: str) -> list[Path] | None:
    """The files that a value leads to; `None` where it is the name of a model."""
    path = folder / Path(value).expanduser()
    if path.is_dir() and (value.startswith((".", "~", "/")) or value.endswith("/")):
        return _in_folder(path)
    if path.is_file():
        return _all_parts(path)
    if value.startswith((".", "~", "/")) or value.lower().endswith((".gguf", ".safetensors")):
        raise RsllmError(f"FROM, ADAPTER or DRAFT names a file that is not there: {path}")
    return _in_folder(path) if path.is_dir() and any(path.glob("*.gguf")) else None


def _in_folder(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.gguf"))
    for path in found:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RsllmError(f"insecure path: {path.name}", hint="it is a link that leads out of its folder")
    if found:
        return found
    if any(folder.rglob("*.safetensors")):
        raise RsllmError("models of safetensors cannot be converted yet", hint="convert it to GGUF elsewhere")
    raise RsllmError("no Modelfile or safetensors files found", hint=f"there is no GGUF in {folder.resolve()} either")


def _all_parts(path: Path) -> list[Path]:
    """The file, or all parts of the split file that it is one of."""
    from rsllm.shards import SHARD_NAME, shard_name

    match = SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.parent / shard_name(match["stem"], number + 1, count) for number in range(count)]
    for part in parts:
        if not part.is_file():
            raise RsllmError(
                f"a part of the split model is missing: {part.name}", hint=f"it belongs beside {path.name}"
            )
    return parts


def files_of(path: Path) -> dict[str, Path]:
    """The files of the model at `path`, by their names: a file, all parts of a split one, those of a folder."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such model file", str(path))
    files: dict[str, Path] = {}
    _add(files, _in_folder(path) if path.is_dir() else _all_parts(path))
    return files


def sent(client: Client, request: Event, files: Mapping[str, Mapping[str, Path]]) -> Iterator[Event]:
    """Send the files that the server lacks, and make the model; what happens."""
    yield {"status": "gathering model components"}
    for member, named in files.items():
        digests = {}
        for name, path in named.items():
            digests[name] = digest = _digest(path)
            if not client.has_blob(digest):
                yield from _upload(client, digest, path)
        if digests:
            request[member] = digests
    yield from client.create(request)


def _digest(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _upload(client: Client, digest: str, path: Path) -> Iterator[Event]:
    """Send a file; tells how far it is."""
    total, sent, stopped = path.stat().st_size, 0, threading.Event()

    def content() -> Iterator[bytes]:
        nonlocal sent
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                if stopped.is_set():
                    raise RsllmError("the upload was cancelled")
                yield piece
                sent += len(piece)

    with ThreadPoolExecutor(1) as executor:
        uploading = executor.submit(client.upload, digest, content())
        try:
            while not uploading.done():
                yield {"status": f"copying file {digest}", "digest": digest, "total": total, "completed": sent}
                wait([uploading], timeout=_TELL_SECONDS)
        except BaseException:
            stopped.set()
            raise
        uploading.result()
    yield {"status": f"copying file {digest}", "digest": digest, "total": total, "completed": total}
