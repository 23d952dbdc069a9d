"""What the lists and `show` say of the store's models."""

from __future__ import annotations

import json
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

__all__ = ["by_name", "capabilities", "show", "tags"]

_UNKNOWN = {
    "parent_model": "", "format": "", "family": "", "families": None, "parameter_size": "", "quantization_level": "",
}  # fmt: skip


def tags(store: Store, *, damaged: bool = False) -> list[dict[str, Any]]:
    """The models of the store, the newest first.

    Damaged ones are left out, or, with `damaged`, have a member `error` that says why they cannot be run.
    """
    entries = sorted(store.names(), key=lambda entry: entry.modified_at, reverse=True)
    listed = [_listed(store, entry) for entry in entries]
    return [one for one in listed if damaged or "error" not in one]


def _listed(store: Store, entry: StoredName) -> dict[str, Any]:
    described_by, error = dict(_UNKNOWN), entry.error
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
    # Where the store is, is nobody's business beyond this machine.
    return listed if error is None else {**listed, "error": error.replace(f"{store.root}/", "")}


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
    info = {
        name: value if verbose or not isinstance(value, list) or not value else None
        for name, value in metadata.items()
        if name not in ("general.name", "tokenizer.chat_template")
    }
    info["general.parameter_count"] = sum(tensor.n_elements for tensor in tensors)
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
        "model_info": _plain(info),
        "tensors": [
            {"name": tensor.name, "type": tensor.type, "shape": list(reversed(tensor.shape))} for tensor in tensors
        ],
        "capabilities": _abilities(metadata, facts, chosen, bool(stored.projectors)),
        "modified_at": stored.modified_at.isoformat(),
        "requires": _text(stored.config.get("requires")),
    }
    empty = ("license", "messages", "requires", "parameters", "system")
    return {name: value for name, value in reply.items() if value or name not in empty}


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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    """Metadata as JSON can say it: bytes that are no text, and numbers that are none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
