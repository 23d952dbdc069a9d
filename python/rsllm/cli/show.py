"""`rsllm show`: what a model is, of a file by itself, of a model in the store by the server that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import format_count, json_option, model_argument, print_json, sections, table

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile, TensorView
    from rsllm.model import Model

__all__ = ["command", "describe_loaded"]

_FIELDS = (
    ("context length", "context_length"),
    ("embedding length", "embedding_length"),
    ("layers", "block_count"),
    ("attention heads", "attention.head_count"),
    ("KV heads", "attention.head_count_kv"),
)
_PLANNED = (
    "architecture", "parameters", "context", "context_reason", "training_context", "max_sequences", "kv_type",
    "threads", "isa", "weight_bytes", "kv_bytes", "scratch_bytes",
)  # fmt: skip
_ARRAY_LIMIT = 16
_TEXT_LIMIT = 60


_SECTIONS = ("license", "modelfile", "parameters", "system", "template")
_ONE_SECTION = "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' can be specified"


@click.command("show")
@model_argument
@click.option("-v", "--verbose", is_flag=True, help="Also the metadata and the tensors.")
@click.option("--license", is_flag=True, help="Print the licence only.")
@click.option("--modelfile", is_flag=True, help="Print a Modelfile that makes the model again.")
@click.option("--parameters", is_flag=True, help="Print the parameters only.")
@click.option("--template", is_flag=True, help="Print the template only.")
@click.option("--system", is_flag=True, help="Print the system message only.")
@click.option("--plan", is_flag=True, help="What loading it here would take: memory, context, and why so much.")
@json_option
def command(model: str, verbose: bool, plan: bool, as_json: bool, **wanted: bool) -> None:
    """Show what MODEL is: architecture, size, capabilities, parameters; of a file also its layout.

    \b
    Examples:
      rsllm show llama3.2
      rsllm show --modelfile llama3.2
      rsllm show --plan demo
      rsllm show -v ./model.gguf
      rsllm show --json demo | jq .model
    """
    from rsllm.refs import is_local

    chosen = [name for name in _SECTIONS if wanted[name]]
    if len(chosen) > 1:
        raise click.UsageError(_ONE_SECTION, click.get_current_context())
    if plan:
        _show_plan(model, as_json)
    elif is_local(model):
        _show_file(model, chosen, verbose=verbose, as_json=as_json)
    else:
        _show_stored(model, chosen, verbose=verbose, as_json=as_json)


def _show_plan(model: str, as_json: bool) -> None:
    """The memory that a model would take if it were loaded now."""
    from rsllm.machine import memory_plan
    from rsllm.refs import locate
    from rsllm.refs.progress import format_bytes

    located = locate(model)
    plan = memory_plan(located.path, None if located.stored is None else located.stored.draft)
    if as_json:
        print_json(plan)
        return
    rows = [
        (name.replace("_", " "), format_bytes(plan[name]) if name.endswith("_bytes") else str(plan[name]))
        for name in _PLANNED
        if name in plan
    ]
    click.echo(sections({"Plan": rows, "Warnings": [("", str(one)) for one in plan.get("warnings") or ()]}))


def _show_stored(model: str, chosen: list[str], *, verbose: bool, as_json: bool) -> None:
    """A model of the store, by the server where one answers."""
    reply = _ask(model, verbose)
    if chosen:
        click.echo(str(reply.get(chosen[0], "")).removesuffix("\n"))
    elif as_json:
        print_json(reply)
    else:
        click.echo(sections(_described(reply, verbose)))


def _ask(model: str, verbose: bool) -> dict[str, Any]:
    """What the server says of a model; where none answers on this machine, what the store says."""
    from rsllm.cli.ondemand import connect

    with connect(start=False) as client:
        if client.is_up() or not client.address.is_loopback:
            return client.show(model, verbose=verbose)
    from rsllm.server.listing import show
    from rsllm.store.name import ModelName
    from rsllm.store.store import Store

    return show(Store.default(read_only=True).find(ModelName.parse(model)), verbose=verbose)


def _described(reply: Mapping[str, Any], verbose: bool) -> dict[str, Iterable[tuple[str, str]]]:
    """The sections of a model of the store, as `ollama show` lays them out."""
    content: dict[str, Iterable[tuple[str, str]]] = {
        "Model": _model_rows(reply),
        "Capabilities": [(str(name), "") for name in reply.get("capabilities") or ()],
        "Projector": _projector_rows(reply.get("projector_info") or {}),
        "Parameters": [_pair(line) for line in str(reply.get("parameters") or "").splitlines()],
    }
    if verbose:
        info = reply.get("model_info") or {}
        content["Metadata"] = [(key, _short(info[key])) for key in sorted(info)]
        content["Tensors"] = [
            (tensor["name"], f"{tensor['type']}    {_short(tensor['shape'])}") for tensor in reply.get("tensors") or ()
        ]
    content["System"] = _first_lines(reply.get("system"))
    content["License"] = _first_lines(reply.get("license"))
    return content


def _model_rows(reply: Mapping[str, Any]) -> list[tuple[str, str]]:
    from rsllm.store.details import human_count

    details, info = reply.get("details") or {}, reply.get("model_info") or {}
    architecture = info.get("general.architecture") or details.get("family")
    count = info.get("general.parameter_count")
    rows = (
        ("Remote model", reply.get("remote_model")),
        ("Remote URL", reply.get("remote_host")),
        ("architecture", architecture),
        ("parameters", human_count(count) if isinstance(count, int) and count else details.get("parameter_size")),
        ("context length", info.get(f"{architecture}.context_length") or details.get("context_length")),
        ("embedding length", info.get(f"{architecture}.embedding_length") or details.get("embedding_length")),
        ("quantization", details.get("quantization_level")),
        ("requires", reply.get("requires")),
    )
    return [(name, str(value)) for name, value in rows if value]


def _projector_rows(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    from rsllm.store.details import human_count

    architecture = info.get("general.architecture")
    count = info.get("general.parameter_count")
    rows = (
        ("architecture", architecture),
        ("parameters", human_count(count) if isinstance(count, int) else None),
        ("embedding length", info.get(f"{architecture}.vision.embedding_length")),
        ("dimensions", info.get(f"{architecture}.vision.projection_dim")),
    )
    return [(name, str(value)) for name, value in rows if value]


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value.strip()


def _first_lines(text: str | None) -> list[tuple[str, str]]:
    """The first two lines that are not empty, and a sign that there are more."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return [(line, "") for line in (*lines[:2], *(["..."] if len(lines) > 2 else []))]


def _show_file(model: str, chosen: list[str], *, verbose: bool, as_json: bool) -> None:
    """A file, whether or not any store knows it."""
    from rsllm import gguf
    from rsllm.refs import resolve

    path = resolve(model)
    file = gguf.open(path)
    metadata = file.metadata
    if chosen:
        click.echo(_of_file(chosen[0], path, metadata))
        return
    tensors = list(file.tensors.values())
    if as_json:
        print_json(_as_json(file, metadata, tensors, whole=verbose))
        return
    click.echo(sections(_summary(metadata, tensors)))
    if verbose:
        click.echo("\n" + sections({"Metadata": [(key, _short(value)) for key, value in metadata.items()]}))
        click.echo("\n  Tensors")
        rows = (
            [tensor.name, tensor.type, "x".join(map(str, tensor.shape)), f"{tensor.n_bytes:,}"] for tensor in tensors
        )
        lines = table(rows, ("name", "type", "shape", "bytes"), right=(3,)).splitlines()
        click.echo("\n".join("    " + line for line in lines))


def _of_file(section: str, path: Path, metadata: Mapping[str, Any]) -> str:
    if section == "modelfile":
        from rsllm.store.modelfile import Instruction

        return str(Instruction("from", str(path.resolve())))
    key = {"license": "general.license", "template": "tokenizer.chat_template"}.get(section)
    if key is None:
        return f"A file has no {section}; a model made of it with `rsllm create` may."
    return str(metadata.get(key) or f"The file has no {key}.")


def describe_loaded(model: Model) -> str:
    """A model in memory, in sections: what it is, and how it runs."""
    from rsllm.refs.progress import format_bytes

    info = model.info()
    memory = (
        ("weights (mapped)", format_bytes(info["weight_bytes"])),
        ("KV cache", f"{format_bytes(info['kv_bytes'])} ({info['kv_type']})"),
        ("scratch", format_bytes(info["scratch_bytes"])),
    )
    return sections(
        {
            "Model": [
                ("architecture", str(info["architecture"])),
                ("parameters", format_count(info["parameters"])),
                ("context length", f"{info['context']} of {info['training_context']} ({info['context_reason']})"),
                ("embedding length", str(info["embed_dim"])),
                ("file", model.path),
            ],
            "Engine": [("threads", str(info["threads"])), ("instruction set", str(info["isa"]))],
            "Memory": memory,
            "Warnings": [("", warning) for warning in info["warnings"]],
        }
    )


def _summary(metadata: Mapping[str, Any], tensors: list[TensorView]) -> dict[str, Iterable[tuple[str, str]]]:
    architecture = str(metadata.get("general.architecture", "unknown"))
    rows = [("architecture", architecture), ("parameters", format_count(_parameters(tensors)))]
    for label, key in _FIELDS:
        value = metadata.get(f"{architecture}.{key}")
        if value is not None:
            rows.append((label, _short(value)))
    rows.append(("quantization", _quantization(metadata, tensors)))
    general = [
        (label, _short(metadata[key]))
        for label, key in (("name", "general.name"), ("license", "general.license"))
        if metadata.get(key)
    ]
    template = metadata.get("tokenizer.chat_template")
    vocabulary = metadata.get("tokenizer.ggml.tokens") or ()
    return {
        "Model": rows,
        "General": general,
        "Tokenizer": [
            ("kind", str(metadata.get("tokenizer.ggml.model", "none"))),
            ("vocabulary", f"{len(vocabulary)} tokens"),
            ("chat template", f"{len(template)} characters" if template else "none: use --raw"),
        ],
    }


def _as_json(file: GgufFile, metadata: Mapping[str, Any], tensors: list[TensorView], *, whole: bool) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    return {
        "model": {
            "architecture": architecture,
            "name": metadata.get("general.name"),
            "parameters": _parameters(tensors),
            "context_length": metadata.get(f"{architecture}.context_length"),
            "quantization": _quantization(metadata, tensors),
        },
        "file": {
            "version": file.version,
            "alignment": file.alignment,
            "files": list(file.files),
            "file_bytes": file.file_bytes,
        },
        "metadata": {key: value if whole else _without_long_arrays(value) for key, value in metadata.items()},
        "tensors": [
            {"name": tensor.name, "type": tensor.type, "shape": list(tensor.shape), "n_bytes": tensor.n_bytes}
            for tensor in tensors
        ],
    }


def _without_long_arrays(value: Any) -> Any:
    # A vocabulary has a hundred thousand entries; `--verbose` prints them.
    if isinstance(value, list) and len(value) > _ARRAY_LIMIT:
        return {"array_length": len(value), "first": value[:_ARRAY_LIMIT]}
    return value


def _parameters(tensors: list[TensorView]) -> int:
    return sum(tensor.n_elements for tensor in tensors)


def _quantization(metadata: Mapping[str, Any], tensors: list[TensorView]) -> str:
    """What the file calls itself, or else the type that most bytes have."""
    from rsllm.store.details import FILE_TYPES

    named = FILE_TYPES.get(metadata.get("general.file_type", -1))
    if named:
        return named
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_bytes
    return max(sizes, key=lambda name: sizes[name], default="unknown")


def _short(value: Any) -> str:
    if isinstance(value, list):
        first = ", ".join(_short(item) for item in value[:4])
        return f"[{first}{', …' if len(value) > 4 else ''}] ({len(value)})"
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"
