"""Creating a model: from one of the store, or from files that have come as blobs, with what a Modelfile adds.

The layers, their order and the bytes of each are Ollama's, so the same content has the same digests whichever of the
two made it. The weights are never changed: quantizing and converting safetensors are refused, and a file's own chat
template stays in the file and is used from there. Parts of a split file are joined into one blob.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsllm.errors import OptionError
from rsllm.store.configuration import configuration
from rsllm.store.digest import Digest
from rsllm.store.files import explained, require_space
from rsllm.store.gojson import go_json
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.request import CreateRequest

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile
    from rsllm.store.adding import Adding
    from rsllm.store.model import StoredModel
    from rsllm.store.store import Store

__all__ = ["CreateRequest", "create"]


@dataclass
class _Making:
    """The model so far: its layers, what each file is, the configuration of its base, and parts now joined."""

    layers: list[Layer] = field(default_factory=list)
    files: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    joined: set[Digest] = field(default_factory=set)

    def replace(self, layer: Layer) -> None:
        """Put the layer at the end, in the place of any of its type."""
        self.layers = [one for one in self.layers if one.media_type != layer.media_type]
        self.layers.append(layer)


def create(store: Store, name: ModelName, request: CreateRequest) -> Iterator[Progress]:
    """Make `name`, step by step; what it meant before goes, with the blobs that only that needed.

    Raises `OptionError` for requests that cannot be meant, `ModelNotFoundError`, `GgufError` for files that are no
    models, `StoreError`. Until the last step the store has the model of before.
    """
    request.check()
    before = None
    with store.adding() as adding:
        making = _Making()
        if request.from_:
            _inherit(making, store.find(ModelName.parse(request.from_)), adding)
        if request.files or request.adapters or request.draft_files:
            yield Progress("parsing GGUF")
            yield from _files(making, store, adding, request)
        yield from _texts(making, store, adding, request)
        made: list[Layer] = []
        yield from _blob(adding, MediaType.CONFIG, _configuration(making, request), made)
        yield Progress("writing manifest")
        before = adding.write_manifest(name, Manifest.build(made[0], making.layers).raw)
    store.remove_unused((before.digests if before is not None else frozenset()) | making.joined)
    yield Progress("success")


def _inherit(making: _Making, base: StoredModel, adding: Adding) -> None:
    """Everything of another model."""
    for layer in base.manifest.layers:
        adding.has_blob(layer.digest)
        making.layers.append(replace(layer, from_=base.name.short))
    making.config = dict(base.config)


def _files(making: _Making, store: Store, adding: Adding, request: CreateRequest) -> Iterator[Progress]:
    """The layers of the files: weights, projectors, an adapter, a draft."""
    for files, only in (
        (request.files, None),
        (request.adapters, MediaType.ADAPTER),
        (request.draft_files, MediaType.DRAFT),
    ):
        for group in _groups(files):
            for digest in group.values():
                if not adding.has_blob(digest):
                    raise OptionError(f"blob {digest} is not here", name="files", hint="upload it before creating")
            yield from _model_file(making, store, adding, group, only)
    weights = [layer for layer in making.layers if layer.media_type == MediaType.MODEL]
    if request.from_ and any(layer.from_ is None for layer in weights):
        raise OptionError("both 'from' and a file give the weights: one of them must", name="files")
    if not weights:
        raise OptionError("no file has the weights of a model", name="files", hint="name the model's GGUF with FROM")


def _groups(files: Mapping[str, Digest]) -> list[dict[str, Digest]]:
    """Files that belong together: the parts of one split file, each other file alone."""
    from rsllm.shards import SHARD_NAME

    groups: dict[str, dict[str, Digest]] = {}
    for file, digest in sorted(files.items()):
        match = SHARD_NAME.fullmatch(file)
        whole = f"{match['stem']}-of-{match['count']}" if match else file
        groups.setdefault(whole, {})[file] = digest
    return list(groups.values())


def _model_file(
    making: _Making, store: Store, adding: Adding, group: Mapping[str, Digest], only: str | None
) -> Iterator[Progress]:
    from rsllm import gguf
    from rsllm.shards import joined, open_linked
    from rsllm.store.details import described

    paths = {Path(file).name: store.blob_path(digest) for file, digest in group.items()}
    for file, path in paths.items():
        _require_gguf(file, path)
    if len(group) == 1:
        (digest,) = group.values()
        size = store.blob_path(digest).stat().st_size
        model = gguf.open(store.blob_path(digest))
        yield Progress(f"using existing layer {digest}")
    else:
        with tempfile.TemporaryDirectory(prefix="rsllm-") as folder, explained(Path(folder), "join the parts"):
            model = open_linked(Path(folder) / "parts", paths)
            require_space(store.layout.blobs, model.file_bytes, "join the parts")
            digest, size = adding.add_blob(joined(model))
        making.joined.update(group.values())
        yield Progress(f"creating new layer {digest}")
    kind = only or _kind(model)
    if only == MediaType.ADAPTER and _kind(model) != MediaType.ADAPTER:
        raise OptionError(f"{min(group)} is a model and no adapter", name="adapters", hint="a model is named with FROM")
    making.layers.append(Layer(kind, digest, size))
    if kind != MediaType.DRAFT:
        making.files.append((kind, described(model)))


def _require_gguf(file: str, path: Path) -> None:
    with path.open("rb") as opened:
        magic = opened.read(4)
    if magic == b"GGUF":
        return
    if file.endswith((".safetensors", ".bin", ".pth", ".json", ".model")):
        raise OptionError(
            f"{file}: models of safetensors or PyTorch files cannot be converted yet",
            name="files",
            hint="convert it to GGUF elsewhere, or pull a GGUF of it",
        )
    raise OptionError(f"supplied file was not in GGUF format: {file}", name="files")


def _kind(model: GgufFile) -> str:
    """What a file is in a model."""
    metadata = model.metadata
    if metadata.get("general.type") == "adapter":
        return MediaType.ADAPTER
    if metadata.get("general.architecture") == "clip" or metadata.get("general.type") == "mmproj":
        return MediaType.PROJECTOR
    return MediaType.MODEL


def _texts(making: _Making, store: Store, adding: Adding, request: CreateRequest) -> Iterator[Progress]:
    """Template, system message, licences, parameters and messages; each takes the place of what was inherited."""
    made: list[Layer] = []
    if request.template:
        yield from _blob(adding, MediaType.TEMPLATE, request.template.encode(), made)
        making.layers = [layer for layer in making.layers if layer.media_type != MediaType.PROMPT]
        making.replace(made[-1])
    if request.system:
        yield from _blob(adding, MediaType.SYSTEM, request.system.encode(), made)
        making.replace(made[-1])
    for text in request.licenses:
        yield from _blob(adding, MediaType.LICENSE, text.encode(), made)
        if all((layer.media_type, layer.digest) != (MediaType.LICENSE, made[-1].digest) for layer in making.layers):
            making.layers.append(made[-1])
    if request.parameters:
        inherited = _inherited_parameters(store, request)
        parameters = {**inherited, **request.parameters}
        content = go_json({name: parameters[name] for name in sorted(parameters)})
        yield from _blob(adding, MediaType.PARAMS, content, made)
        making.replace(made[-1])
    if request.messages:
        yield from _blob(adding, MediaType.MESSAGES, go_json(request.messages), made)
        making.replace(made[-1])


def _inherited_parameters(store: Store, request: CreateRequest) -> dict[str, Any]:
    return store.find(ModelName.parse(request.from_)).parameters if request.from_ else {}


def _blob(adding: Adding, media_type: str, content: bytes, made: list[Layer]) -> Iterator[Progress]:
    digest = Digest.of(content)
    is_there = adding.has_blob(digest, len(content))
    if not is_there:
        adding.add_blob([content], digest)
    made.append(Layer(media_type, digest, len(content)))
    yield Progress(f"{'using existing' if is_there else 'creating new'} layer {digest}")


def _configuration(making: _Making, request: CreateRequest) -> bytes:
    return configuration(
        making.files,
        base=making.config,
        renderer=request.renderer,
        parser=request.parser,
        requires=request.requires,
    )
