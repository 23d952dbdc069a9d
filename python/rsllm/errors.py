"""What rsllm raises.

::

    Exception
      RsllmError                     everything below; `except rsllm.RsllmError` catches all of it
        GgufError                    a model file that is damaged, cut short, or not GGUF at all
        ModelError                   an architecture that is not supported, a missing tensor, contradictory metadata
        TokenizerError               vocabulary that cannot be used, text that is not valid Unicode
        OptionError (ValueError)     an option that does not exist or is out of range
          ModelNameError             text that is not the name of a model
          DigestError                text that is not a digest
        ContextLengthError (ValueError)   a prompt longer than the context
        TemplateError                a chat template that is missing, wrong, refuses the messages or runs wild
        ModelfileError               a Modelfile that cannot be read
        ModelNotFoundError           a model reference that leads nowhere
        DownloadError                a model that could not be fetched
          RegistryError              a registry that refuses, breaks the protocol, or must not be asked
            RegistryAuthError        it does not let this user in
            AddressRefusedError      an address that may not be reached from here
        StoreError                   trouble with the model store
          ManifestError              a manifest that is damaged
          DigestMismatchError        a blob that is not what its digest says
          StoreFullError             no room for a file
          ReadOnlyStoreError         a store that cannot be written to
        ServerError                  a server answered with an error
          ServerUnreachableError     no server answers
        EngineClosedError            a model used after `close()`
        BackendError                 the device failed
        MemoryPlanError              a model that cannot fit in memory, known before anything is allocated
        QueueFullError               more requests wait than are allowed to
        RequestTimeoutError (TimeoutError)   a request that took longer than it may
        RunnerError                  trouble with the process that runs a model
          RunnerCrashedError         it ended by itself: exit status or signal, and its last lines
          RunnerTimeoutError         it did not get ready, or no longer answers
          ProtocolError              what came from the other side is not the protocol
        CoreImportError (ImportError)   the compiled part is missing, or for another machine or Python

Trouble with the operating system keeps Python's own classes: `FileNotFoundError`, `PermissionError`,
`IsADirectoryError`. The Rust core raises the classes of this module by name, so their names are part of its contract.
"""

from __future__ import annotations

__all__ = [
    "AddressRefusedError",
    "BackendError",
    "ContextLengthError",
    "CoreImportError",
    "DigestError",
    "DigestMismatchError",
    "DownloadError",
    "EngineClosedError",
    "GgufError",
    "ManifestError",
    "MemoryPlanError",
    "ModelError",
    "ModelNameError",
    "ModelNotFoundError",
    "ModelfileError",
    "OptionError",
    "ProtocolError",
    "QueueFullError",
    "ReadOnlyStoreError",
    "RegistryAuthError",
    "RegistryError",
    "RequestTimeoutError",
    "RsllmError",
    "RunnerCrashedError",
    "RunnerError",
    "RunnerTimeoutError",
    "ServerError",
    "ServerUnreachableError",
    "StoreError",
    "StoreFullError",
    "TemplateError",
    "TokenizerError",
]


class RsllmError(Exception):
    """The root of the tree. `hint` says what to do about it, where there is something to do."""

    hint: str | None

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class GgufError(RsllmError):
    """A model file is damaged, cut short, or something else.

    `file` and `field` say where, `expected` and `found` what; each is `None` where it does not apply.
    """

    def __init__(
        self,
        message: str = "",
        *,
        file: str | None = None,
        field: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.field = field
        self.expected = expected
        self.found = found


class ModelError(RsllmError):
    """The file is sound, but this model cannot be run: architecture, tensors or metadata."""


class TokenizerError(RsllmError):
    """The vocabulary cannot be used, or a text is not valid Unicode."""


class OptionError(RsllmError, ValueError):
    """An option does not exist or its value is out of range; `name` is the option's."""

    def __init__(self, message: str = "", *, name: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.name = name


class ModelNameError(OptionError):
    """A text is not the name of a model."""


class DigestError(OptionError):
    """A text is not a digest."""


class ContextLengthError(RsllmError, ValueError):
    """The prompt has `prompt_tokens` tokens, the context room for `context`."""

    def __init__(
        self,
        message: str = "",
        *,
        prompt_tokens: int | None = None,
        context: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.prompt_tokens = prompt_tokens
        self.context = context


class TemplateError(RsllmError):
    """The chat template is missing, wrong, refuses the messages or exceeds a limit; `line` is the template's."""

    def __init__(self, message: str = "", *, line: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line


class ModelfileError(RsllmError):
    """A Modelfile cannot be read; `line` says where, counted from 1."""

    def __init__(self, message: str = "", *, line: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line


class ModelNotFoundError(RsllmError):
    """A model reference leads nowhere, or names a source that is not supported yet."""


class DownloadError(RsllmError):
    """A model could not be fetched, or what came is not what was expected."""


class RegistryError(DownloadError):
    """A registry refuses, breaks the protocol, or must not be asked; `status` is its HTTP status, if it gave one."""

    def __init__(self, message: str = "", *, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class RegistryAuthError(RegistryError):
    """A registry does not let this user in."""


class AddressRefusedError(RegistryError):
    """An address is private, or would be reached without encryption, and nobody allowed it."""


class StoreError(RsllmError):
    """Trouble with the model store; `path` is the file or folder."""

    def __init__(self, message: str = "", *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class ManifestError(StoreError):
    """A manifest is damaged; `field` says where in it."""

    def __init__(
        self, message: str = "", *, path: str | None = None, field: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.field = field


class DigestMismatchError(StoreError):
    """A blob was to have the digest `expected` and has `found`."""

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.expected = expected
        self.found = found


class StoreFullError(StoreError):
    """The disk, or what this user or process may write to it, is full. Nothing was left half-written."""


class ReadOnlyStoreError(StoreError):
    """The store, or this user's right to it, allows only reading."""


class ServerError(RsllmError):
    """A server answered with an error; `status` is that of HTTP, `None` where it came in the middle of a reply."""

    def __init__(self, message: str = "", *, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ServerUnreachableError(ServerError):
    """No server answers at the address, or the connection broke."""


class EngineClosedError(RsllmError):
    """The model was closed."""


class BackendError(RsllmError):
    """The device that computes has failed."""


class MemoryPlanError(RsllmError):
    """A model needs `needed_bytes` of memory of its own, and at most `available_bytes` can be had."""

    def __init__(
        self,
        message: str = "",
        *,
        needed_bytes: int | None = None,
        available_bytes: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class QueueFullError(RsllmError):
    """`waiting` requests wait already, as many as `limit` allows."""

    def __init__(
        self, message: str = "", *, waiting: int | None = None, limit: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.waiting = waiting
        self.limit = limit


class RequestTimeoutError(RsllmError, TimeoutError):
    """A request took longer than `seconds`; it was cancelled."""

    def __init__(self, message: str = "", *, seconds: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class RunnerError(RsllmError):
    """Trouble with the process that runs `model`."""

    def __init__(self, message: str = "", *, model: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.model = model


class RunnerCrashedError(RunnerError):
    """The process ended by itself.

    `status` is its exit status in words (`signal SIGKILL`, `exit code 3`), `exit_code` the number, negative for a
    signal, and `last_lines` what it wrote last.
    """

    def __init__(
        self,
        message: str = "",
        *,
        model: str | None = None,
        status: str | None = None,
        exit_code: int | None = None,
        last_lines: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, model=model, hint=hint)
        self.status = status
        self.exit_code = exit_code
        self.last_lines = last_lines


class RunnerTimeoutError(RunnerError):
    """The process did not get ready in time, or no longer answers; it was killed."""


class ProtocolError(RunnerError):
    """What came from the other side of the socket is not the protocol: size, form, version or order."""


class CoreImportError(RsllmError, ImportError):
    """The compiled part of the package is missing, or made for another machine or another Python."""

    @classmethod
    def of(cls, error: ImportError) -> CoreImportError | None:
        """What an import error means for users; `None` where it is about something else."""
        if (error.name or "").rpartition(".")[2] != "_core" and "'_core'" not in str(error):
            return None
        import platform

        this = f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}"
        return cls(
            f"the compiled part of rsllm cannot be loaded by this Python ({this}): {error}; "
            "install it anew: python -m pip install --force-reinstall --no-cache-dir rsllm"
        )
