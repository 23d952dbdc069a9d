"""`rsllm show`: what a model file says about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import format_count, json_option, model_argument, print_json, sections, table

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile, TensorView
    from rsllm.model import Model

__all__ = ["command", "describe_loaded"]

# Names of `general.file_type`, llama.cpp's summary of the tensor types.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 21: "Q2_K_S", 32: "BF16",
}  # fmt: skip
_FIELDS = (
    ("context length", "context_length"),
    ("embedding length", "embedding_length"),
    ("layers", "block_count"),
    ("attention heads", "attention.head_count"),
    ("KV heads", "attention.head_count_kv"),
)
_ARRAY_LIMIT = 16
_TEXT_LIMIT = 60


@click.command("show")
@model_argument
@click.option("-v", "--verbose", is_flag=True, help="Also the metadata and the tensors.")
@click.option("--template", "section", flag_value="tokenizer.chat_template", help="Print the chat template only.")
@click.option("--license", "section", flag_value="general.license", help="Print the licence only.")
@json_option
def command(model: str, verbose: bool, section: str | None, as_json: bool) -> None:
    """Show what MODEL is: architecture, size, metadata, tensors.

    \b
    Examples:
      rsllm show demo
      rsllm show -v ./model.gguf
      rsllm show --json demo | jq .model
      rsllm show --template demo
    """
    from rsllm import gguf
    from rsllm.refs import resolve

    file = gguf.open(resolve(model))
    metadata = file.metadata
    if section is not None:
        click.echo(metadata.get(section) or f"The file has no {section}.")
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
    named = _FILE_TYPES.get(metadata.get("general.file_type", -1))
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
