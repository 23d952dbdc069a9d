"""What the lists and `show` say of the store's models."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rsllm.errors import RsllmError
from rsllm.store.check import problem
from rsllm.store.details import described, details, modelfile_of
from rsllm.store.model import StoredModel
from rsllm.store.store import Store, StoredName

if TYPE_CHECKING:
    from rsllm.server.models import Facts
    from rsllm.server.templates import Chosen

__all__ = ["by_name", "capabilities", "show", "tags", "tags_in_full"]

_UNKNOWN = {
    "parent_model": "", "format": "", "family": "", "families": None, "parameter_size": "", "quantization_level": "",
}  # fmt: skip
_KEPT = 1024
_summaries: dict[tuple[Any, ...], tuple[dict[str, int], list[str]]] = {}


def tags(store: Store) -> list[dict[str, Any]]:
    """The models of the store that can be run, the newest first."""
    listed = (_listed(store, entry)[0] for entry in _newest_first(store))
    return [one for one in listed if "error" not in one]


def tags_in_full(store: Store, *, setting: bool | None = None) -> list[dict[str, Any]]:
    """The same with what each can do (`setting`: as for `capabilities`), and how long its contexts and embeddings are.

    Damaged ones are among them, with a member `error` that says why they cannot be run.
    """
    full = []
    for entry in _newest_first(store):
        listed, stored = _listed(store, entry)
        # One that cannot be read is told of when somebody runs it: the list does not open files to find out.
        with contextlib.suppress(RsllmError, OSError):
            if stored is not None and "error" not in listed:
                lengths, able = _summary(stored, setting)
                listed = {**listed, "details": {**lengths, **listed["details"]}, "capabilities": able}
        full.append(listed)
    return full


def _newest_first(store: Store) -> list[StoredName]:
    return sorted(store.names(), key=lambda entry: entry.modified_at, reverse=True)


def _listed(store: Store, entry: StoredName) -> tuple[dict[str, Any], StoredModel | None]:
    described_by, error, stored = dict(_UNKNOWN), entry.error, None
    if entry.manifest is not None:
        try:
            stored = store.find(entry.name)
            described_by = details(stored)
            error = problem(store, stored.manifest)
        except (RsllmError, OSError) as failure:
            error = str(failure)
    listed = {
        "name": entry.name.short,
        "model": entry.name.short,
        "modified_at": entry.modified_at.isoformat(),
        "size": entry.size,
        "digest": entry.digest.hex if entry.digest is not None else "",
        "details": described_by,
    }
    if error is not None:  # where the store is, is nobody's business beyond this machine
        listed["error"] = error.replace(f"{store.root}/", "")
    return listed, stored


def _summary(stored: StoredModel, setting: bool | None) -> tuple[dict[str, int], list[str]]:
    """What a list says that only the weights file knows: lengths, and what the model can do.

    Kept, since a file's metadata takes a tenth of a second to read where the vocabulary is large.
    """
    from rsllm import gguf
    from rsllm.server.models import facts_from, sources, weights
    from rsllm.server.templates import choose

    path = weights(stored)
    status = os.stat(path)
    key = (stored.digest_hex, stored.name.model, path, status.st_mtime_ns, status.st_size, setting)
    if (known := _summaries.get(key)) is not None:
        return known
    metadata = gguf.open(path).metadata
    facts = facts_from(metadata)
    chosen = choose(sources(stored, facts), setting=setting)
    lengths = {
        name: value
        for name in ("context_length", "embedding_length")
        if isinstance(value := metadata.get(f"{facts.architecture}.{name}"), int)
    }
    if len(_summaries) >= _KEPT:
        _summaries.clear()
    _summaries[key] = lengths, _abilities(metadata, facts, chosen, bool(stored.projectors))
    return _summaries[key]


def by_name(store: Store) -> dict[str, dict[str, Any]]:
    """The same by name."""
    return {entry["name"]: entry for entry in tags(store)}


def show(
    stored: StoredModel,
    *,
    verbose: bool = False,
    system: str = "",
    options: Mapping[str, Any] | None = None,
    setting: bool | None = None,
) -> dict[str, Any]:
    """What `show` says of one model; `system` and `options` take the place of its own. `setting`: as for
    `capabilities`."""
    from rsllm import gguf
    from rsllm.server.models import facts_from, sources, weights
    from rsllm.server.templates import choose

    path = weights(stored)
    file = gguf.open(path)
    metadata = file.metadata
    tensors = list(file.tensors.values())
    system = system or stored.system or ""
    facts = facts_from(metadata)
    chosen = choose(sources(stored, facts), setting=setting)
    # A template that cannot be used is shown all the same.
    unusable = stored.template or _text(metadata.get("tokenizer.chat_template"))
    template = chosen.template.source if chosen.template is not None else unusable
    parameters = {**stored.parameters, **(options or {})}
    reply: dict[str, Any] = {
        "license": "\n".join(stored.licenses),
        "modelfile": modelfile_of(stored, system=system, parameters=parameters),
        "parameters": "\n".join(_parameters(parameters)),
        "template": template,
        "system": system,
        "details": {**described(file), **details(stored)},
        "messages": stored.messages,
        "model_info": _model_info(metadata, sum(tensor.n_elements for tensor in tensors), verbose),
        "tensors": [{"name": it.name, "type": it.type, "shape": list(reversed(it.shape))} for it in tensors],
        "capabilities": _abilities(metadata, facts, chosen, bool(stored.projectors)),
        "modified_at": stored.modified_at.isoformat(),
        "requires": _text(stored.config.get("requires")),
    }
    empty = ("license", "messages", "requires", "parameters", "system")
    return {name: value for name, value in reply.items() if value or name not in empty}


def _model_info(metadata: Mapping[str, Any], parameters: int, verbose: bool) -> Any:
    """The metadata, long lists left out unless asked for."""
    info = {
        name: value if verbose or not isinstance(value, list) or not value else None
        for name, value in metadata.items()
        if name not in ("general.name", "tokenizer.chat_template")
    }
    return _plain({**info, "general.parameter_count": parameters})


def capabilities(
    metadata: Mapping[str, Any], has_projector: bool, go_template: str, *, setting: bool | None = None
) -> list[str]:
    """What a model can do, by its file and the template that makes its prompts (`setting`: OLLAMA_GO_TEMPLATE).

    All that is listed can be asked for, but for images, which no model can be shown yet.
    """
    from rsllm.server.models import facts_from
    from rsllm.server.templates import Sources, choose

    facts = facts_from(metadata)
    chosen = choose(Sources(facts.template, facts.template_with_tools, go=go_template), setting=setting)
    return _abilities(metadata, facts, chosen, has_projector)


def _abilities(metadata: Mapping[str, Any], facts: Facts, chosen: Chosen, has_projector: bool) -> list[str]:
    template = chosen.template
    holds = {
        "embedding": facts.is_embedding,
        "completion": not facts.is_embedding,
        "vision": has_projector or bool(metadata.get(f"{facts.architecture}.vision.block_count")),
        "tools": template is not None and template.has_tools,
        "insert": chosen.suffix is not None or facts.gap is not None,
        "thinking": template is not None and template.thinks,
    }
    return [name for name, held in holds.items() if held]


def _parameters(parameters: Mapping[str, Any]) -> list[str]:
    """Lines of name and value, one for each value of a list; texts in quotes, as Go writes them."""
    lines = []
    for name, value in parameters.items():
        for one in value if isinstance(value, list) else [value]:
            shown = json.dumps(one, ensure_ascii=False) if isinstance(one, (str, bool)) else one
            lines.append(f"{name:<30} {shown}")
    return lines


def _short(value: float) -> float | None:
    """A float32 as people write it, 1e-06 and not 9.999999974752427e-07; what is no number is null."""
    if not abs(value) < float("inf"):
        return None
    rounded = float(f"{value:.7g}")
    same = value == _as_float32(value) == _as_float32(rounded)
    return rounded if same else value


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    """Metadata as JSON can say it: bytes that are no text, and numbers that are none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
