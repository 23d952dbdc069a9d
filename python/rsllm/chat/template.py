"""A model's chat template: messages in, prompt out, with the user's text told from the template's.

The template is the file's own Jinja, run by Jinja2 (`sandbox`). Every intermediate of a conversation that people
wrote is marked (`taint`), so that `<|im_end|>` in a message is tokenised as nine characters of text and not as the
end of the turn. A file without a template has no chat: none is guessed and none is put in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from rsllm.chat.sandbox import SIZE_LIMIT, LimitError, Refusal, TemplateEnvironment
from rsllm.chat.taint import Taint, map_strings
from rsllm.errors import TemplateError

__all__ = ["ChatTemplate"]

_KEY = "tokenizer.chat_template"
_REASONING = ("reasoning_content", "thinking", "reasoning")
# llama.cpp's token types whose text is read as a control token wherever special tokens are parsed.
_CONTROL_TYPES = frozenset({2, 3})  # unknown, control
# Names that transformers gives to templates, and the metadata key with the token's id.
_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "cls_token": "tokenizer.ggml.cls_token_id",
    "mask_token": "tokenizer.ggml.mask_token_id",
}
_GO_TEMPLATE = re.compile(r"\{\{-?\s*(if|range|with|end|\$|\.[A-Z])")


class ChatTemplate:
    """A compiled template. Immutable: it may render for many threads."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        control_texts: Iterable[str] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`. `special_tokens` are variables (`bos_token`…), `control_texts` the vocabulary's control
        tokens, and `now` the clock of `strftime_now`. Raises `TemplateError` where it does not compile."""
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._control_texts = tuple(control_texts)
        self._environment = TemplateEnvironment(now)
        if len(source) > SIZE_LIMIT:
            raise TemplateError(f"the chat template has {len(source):,} characters; at most {SIZE_LIMIT:,} are read")
        try:
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateSyntaxError, SyntaxError) as error:
            hint = "this looks like a Go template, not Jinja" if _GO_TEMPLATE.search(source) else None
            reason = error.msg if isinstance(error, SyntaxError) else error.message
            message = f"the chat template is not valid Jinja: {reason} (line {error.lineno})"
            raise TemplateError(message, line=error.lineno, hint=hint) from error
        except Exception as error:  # nesting beyond the parser's or the compiler's limit, among others
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        *,
        name: str | None = None,
        file: str = "the model",
        now: Callable[[], datetime] = datetime.now,
    ) -> ChatTemplate:
        """The template of a model file, the one called `name` where there are several."""
        key = f"{_KEY}.{name}" if name else _KEY
        source = metadata.get(key)
        if not isinstance(source, str) or not source:
            others = [found.removeprefix(_KEY + ".") for found in metadata if found.startswith(_KEY + ".")]
            raise TemplateError(
                f"{file} has no chat template ({key})",
                hint=f"templates in the file: {', '.join(others)}" if others else
                "use generate() or `rsllm run --raw` with a prompt in the form that the model was trained on",
            )  # fmt: skip
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        types = metadata.get("tokenizer.ggml.token_type", ())
        return cls(
            source,
            special_tokens={
                variable: tokens[metadata[id_key]]
                for variable, id_key in _SPECIAL_TOKENS.items()
                if isinstance(metadata.get(id_key), int) and isinstance(_at(tokens, metadata[id_key]), str)
            },
            # A text that is no UTF-8 cannot stand in a message.
            control_texts=[
                text
                for text, kind in zip(tokens, types, strict=False)
                if kind in _CONTROL_TYPES and isinstance(text, str) and text
            ],
            now=now,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[tuple[str, bool]]:
        """The prompt in parts: text, and whether it is the template's (then control tokens in it count).

        `variables` reach the template by name. Raises `TemplateError`; where the template itself refuses the
        messages, its text is the template's own.

        >>> ChatTemplate("{{ '<s>' + messages[0].content }}").render([{"role": "user", "content": "a <s>"}])
        [('<s>', True), ('a <s>', False)]
        """
        given = {
            "messages": [_with_reasoning(_without_none(_plain(message))) for message in messages],
            "tools": _plain(list(tools)) if tools is not None else None,
            "documents": None,
            **{name: _plain(value) for name, value in (variables or {}).items()},
        }
        plain = self._run(given, add_generation_prompt)
        taint = Taint(plain, *_strings(given))
        for marked in _markings(given, taint):
            try:
                parts = taint.parts(self._run(marked, add_generation_prompt))
            except TemplateError:
                continue  # it looked into the text and did not like the marks
            if "".join(text for text, _ in parts) == plain:
                return parts
        # The template looks into what people wrote. Mark only what would become control tokens; should it look into
        # that too, its answer to the marked text counts, since user text must not turn into control.
        escaped = map_strings(given, self._escape(taint))
        return taint.parts(self._run(escaped, add_generation_prompt))

    def render_text(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """As `render`, joined: the very text that transformers renders."""
        return "".join(text for text, _ in self.render(messages, **options))

    def _run(self, given: Mapping[str, Any], add_generation_prompt: bool) -> str:
        self._environment.start_clock()
        chunks = []
        size = 0
        try:
            # Where a variable has the name of a special token, the caller's wins.
            context = {**self._special_tokens, "add_generation_prompt": add_generation_prompt, **given}
            for chunk in self._template.generate(context):
                size += len(chunk)
                if size > SIZE_LIMIT:
                    raise LimitError(f"the template puts out more than {SIZE_LIMIT:,} characters")
                chunks.append(chunk)
        except Refusal as error:
            raise TemplateError(str(error), line=_line(error)) from error
        except Exception as error:  # whatever a stranger's program does is the template's fault, not ours
            line = _line(error)
            where = f" in line {line}" if line else ""
            reason = str(error) or type(error).__name__
            raise TemplateError(f"the chat template failed{where}: {reason}", line=line) from error
        return "".join(chunks)

    def _escape(self, taint: Taint) -> Callable[[str], str]:
        texts = sorted(self._control_texts, key=len, reverse=True)
        if not texts:
            return lambda text: text
        pattern = re.compile("|".join(map(re.escape, texts)))
        return lambda text: pattern.sub(lambda match: taint.mark(match[0]), text)


def _markings(given: Mapping[str, Any], taint: Taint) -> Iterable[Mapping[str, Any]]:
    """The inputs with everything marked, then with the contents of messages only."""
    yield map_strings(given, taint.mark)
    contents = [
        {name: map_strings(value, taint.mark) if name == "content" else value for name, value in message.items()}
        for message in given["messages"]
    ]
    yield {**given, "messages": contents}


def _strings(value: Any) -> list[str]:
    found: list[str] = []
    map_strings(value, lambda text: found.append(text) or text)  # type: ignore[func-returns-value]
    return found


def _plain(value: Any) -> Any:
    """`value` rebuilt of plain JSON types, so that a template meets no object with methods of its own."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TemplateError(f"messages, tools and variables are made of JSON types, not of {type(value).__name__}")


def _with_reasoning(message: Any) -> Any:
    """What was thought, under the names that templates know it by, whichever of them the message uses."""
    thought = next((message[name] for name in _REASONING if name in message), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _without_none(message: Any) -> Any:
    """Clients send `content: null` beside tool calls; templates know an absent key, as in transformers."""
    if not isinstance(message, dict):
        raise TemplateError(f"a message is a dictionary with a role and a content, not {type(message).__name__}")
    return {key: value for key, value in message.items() if value is not None}


def _at(tokens: Sequence[Any], index: int) -> Any:
    return tokens[index] if 0 <= index < len(tokens) else None


def _line(error: BaseException) -> int | None:
    """The template's line in the traceback, which Jinja2 rewrites to speak of the template."""
    line = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
