"""Names of models: `[scheme://][host[:port]/][namespace/]model[:tag]`.

A name keeps the case it was written in; `key` is what two spellings of one name have in common. Every part is checked
before it can become part of a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rsllm.errors import ModelNameError

__all__ = ["DEFAULT_HOST", "DEFAULT_NAMESPACE", "DEFAULT_TAG", "ModelName"]

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

_SHOWN = 80
_SCHEMES = ("http", "https")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


@dataclass(frozen=True)
class _Part:
    longest: int
    pattern: re.Pattern[str]
    characters: str


_DOTTED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_PARTS = {
    "host": _Part(350, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", re.ASCII), "letters, digits and - _ . :"),
    "namespace": _Part(80, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII), "letters, digits and - _"),
    "model": _Part(80, _DOTTED, "letters, digits and - _ ."),
    "tag": _Part(80, _DOTTED, "letters, digits and - _ ."),
}


@dataclass(frozen=True)
class ModelName:
    """A whole name. The constructor checks nothing; `parse` and `validated` do."""

    host: str
    namespace: str
    model: str
    tag: str
    scheme: str = "https"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Read a name, filling in what is left out; raises `ModelNameError` saying what is wrong with it."""
        rest = text.strip()
        scheme = "https"
        if match := _SCHEME.fullmatch(rest):
            scheme, rest = match[1].lower(), match[2]
            if scheme not in _SCHEMES:
                raise _invalid(text, f"the scheme {scheme!r} is neither http nor https")
        if not rest:
            raise _invalid(text, "it is empty")
        if "@" in rest:
            raise _invalid(text, "a name has no '@'", hint="name a tag instead: model:tag")
        path, tag = rest, DEFAULT_TAG
        colon = rest.rfind(":")
        if colon > rest.rfind("/"):
            path, tag = rest[:colon], rest[colon + 1 :]
        parts = path.split("/")
        if len(parts) > 3:
            raise _invalid(text, "it has more than three parts", hint="write host/namespace/model:tag")
        host, namespace, model = [DEFAULT_HOST, DEFAULT_NAMESPACE, ""][: 3 - len(parts)] + parts
        return cls(host, namespace, model, tag, scheme)._checked(text)

    def validated(self) -> ModelName:
        """Itself, if every part is allowed; raises `ModelNameError`."""
        return self._checked(self.full)

    def _checked(self, text: str) -> ModelName:
        for name, rule in _PARTS.items():
            value: str = getattr(self, name)
            if not value:
                raise _invalid(text, f"the {name} is empty")
            if len(value) > rule.longest:
                raise _invalid(text, f"the {name} has {len(value)} characters, and at most {rule.longest} are allowed")
            if not rule.pattern.fullmatch(value):
                raise _invalid(
                    text, f"a {name} has {rule.characters}, and starts with a letter, a digit or _: {value[:_SHOWN]!r}"
                )
        return self

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Host, namespace, model, tag: the folders and the file of its manifest."""
        return (self.host, self.namespace, self.model, self.tag)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Equal for two spellings of one name."""
        return (self.host.lower(), self.namespace.lower(), self.model.lower(), self.tag.lower())

    @property
    def short(self) -> str:
        """As lists show it: without the default host and namespace, always with the tag."""
        name = f"{self.model}:{self.tag}"
        host, namespace = self.host.lower() != DEFAULT_HOST, self.namespace.lower() != DEFAULT_NAMESPACE
        if host or namespace:
            name = f"{self.namespace}/{name}"
        return f"{self.host}/{name}" if host else name

    @property
    def full(self) -> str:
        """`host/namespace/model:tag`."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def is_default_host(self) -> bool:
        """Whether the host is the one that names without a host mean."""
        return self.host.lower() == DEFAULT_HOST

    def with_parts(self, host: str, namespace: str, model: str, tag: str) -> ModelName:
        """The same name in the spelling of these parts."""
        return replace(self, host=host, namespace=namespace, model=model, tag=tag)

    def __str__(self) -> str:
        return self.short


def _invalid(text: str, reason: str, *, hint: str | None = None) -> ModelNameError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return ModelNameError(f"invalid model name: {shown!r}: {reason}", name="model", hint=hint)
