"""The request that makes a model, `POST /api/create`, read strictly: a wrong member is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from rsllm.errors import OptionError, TemplateError
from rsllm.store.digest import Digest
from rsllm.store.name import ModelName

__all__ = ["CreateRequest"]

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class CreateRequest:
    """What a model is made from. Texts that are empty are not given."""

    from_: str = ""
    files: dict[str, Digest] = field(default_factory=dict)
    adapters: dict[str, Digest] = field(default_factory=dict)
    draft_files: dict[str, Digest] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    licenses: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    quantize: str = ""
    draft_quantize: str = ""
    remote_host: str = ""

    @classmethod
    def from_dict(cls, members: Mapping[str, Any]) -> CreateRequest:
        """Read the members of a request; raises `OptionError`, `DigestError`."""
        texts = {
            name: _text(members, name)
            for name in ("template", "system", "renderer", "parser", "requires", "draft_quantize", "remote_host")
        }
        if members.get("modelfile") or members.get("path"):
            raise OptionError(
                "the server reads no Modelfile: send 'from' or 'files'",
                name="modelfile",
                hint="`rsllm create NAME -f Modelfile` does so",
            )
        return cls(
            from_=_text(members, "from").strip(),
            files=_files(members, "files"),
            adapters=_files(members, "adapters"),
            draft_files=_files(members, "draft_files"),
            licenses=_texts(members, "license"),
            parameters=dict(_mapping(members, "parameters")),
            messages=_messages(members),
            quantize=_text(members, "quantize") or _text(members, "quantization"),
            **texts,
        )

    def check(self) -> None:
        """Raise `OptionError` or `TemplateError` for what cannot be made, before anything is done."""
        if self.remote_host:
            raise OptionError("bad remote: models of other servers are not supported", name="remote_host")
        if not self.from_ and not self.files:
            raise OptionError("neither 'from' or 'files' was specified", name="from")
        if self.from_:
            ModelName.parse(self.from_)
        if len(self.adapters) > 1:
            raise OptionError("only one adapter is currently supported", name="adapters")
        if self.draft_quantize and not self.draft_files:
            raise OptionError("--draft-quantize requires a DRAFT model", name="draft_quantize")
        if wanted := self.quantize or self.draft_quantize:
            raise OptionError(
                f"models cannot be quantized yet: {wanted[:40]}",
                name="quantize",
                hint="pull a GGUF that is quantized already",
            )
        if self.template.count("{{") != self.template.count("}}"):
            line = self.template[: self.template.rfind("{{")].count("\n") + 1
            raise TemplateError("template error: an action that is not closed, or not opened", line=line)


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name, "")
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a string", name=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{name} is not valid Unicode", name=name) from None
    return value


def _texts(members: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = members.get(name) or []
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise OptionError(f"{name} must be a string, or a list of strings", name=name)
    return tuple(_text({name: one}, name) for one in values if one)


def _mapping(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = members.get(name) or {}
    if not isinstance(value, Mapping):
        raise OptionError(f"{name} must be an object", name=name)
    return value


def _files(members: Mapping[str, Any], name: str) -> dict[str, Digest]:
    files: dict[str, Digest] = {}
    for file, digest in _mapping(members, name).items():
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\0" in file or not path.name:
            raise OptionError("file path must be relative", name=name, hint=f"it is {file[:80]!r}")
        files[file] = Digest.parse(digest)
    return files


def _messages(members: Mapping[str, Any]) -> list[dict[str, Any]]:
    value = members.get("messages") or []
    if not isinstance(value, list):
        raise OptionError("messages must be a list", name="messages")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("content", ""), str):
            raise OptionError("each of messages must be an object with role and content", name="messages")
        if message.get("role") not in _ROLES:
            raise OptionError('message role must be one of "system", "user", or "assistant"', name="messages")
    order = ("role", "content")
    return [
        {
            **{name: message.get(name, "") for name in order},
            **{name: one for name, one in message.items() if name not in order},
        }
        for message in value
    ]
