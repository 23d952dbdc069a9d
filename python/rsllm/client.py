"""A client of the server, ours or a running Ollama: what the command line speaks.

Synchronous, over httpx2. Streams are iterators of the objects that come; closing one, or Ctrl-C while waiting, closes
the connection, and the server cancels what it was for. Errors are those of `rsllm.errors` again: our server names the
class, and of another one the status says enough.

    with Client() as client:
        for event in client.generate({"model": "smollm2:135m", "prompt": "Why is the sky blue?"}):
            print(event["response"], end="")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rsllm import errors
from rsllm.address import Address
from rsllm.config import config
from rsllm.errors import RsllmError, ServerError, ServerUnreachableError

if TYPE_CHECKING:
    import httpx2

__all__ = ["Client", "error_from"]

_CONNECT_SECONDS = 5.0
_ERROR_LIMIT = 1 << 20
Event = dict[str, Any]


class Client:
    """Asks one server. `start` is called once, where nobody answers at its address, to change that."""

    def __init__(
        self,
        address: Address | None = None,
        *,
        api_key: str | None = None,
        start: Callable[[], None] | None = None,
        transport: Any = None,
    ) -> None:
        import httpx2

        self.address = (address or Address.parse(config().host)).for_client
        key = api_key if api_key is not None else config().api_key
        self._start = start
        self._http = httpx2.Client(
            base_url=self.address.url,
            headers={"user-agent": "rsllm", **({"authorization": f"Bearer {key}"} if key else {})},
            # A generation may take hours; only connecting must not.
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
            # A proxy does not know this machine's own servers.
            trust_env=not self.address.is_loopback,
            # Reading all certificates takes longer than an answer; http has no use for them.
            verify=self.address.scheme == "https",
            transport=transport,
        )

    # Answers that stream: pass `"stream": False` for one object.

    def generate(self, request: Mapping[str, Any]) -> Iterator[Event]:
        """`POST /api/generate`."""
        return self._stream("/api/generate", request)

    def chat(self, request: Mapping[str, Any]) -> Iterator[Event]:
        """`POST /api/chat`."""
        return self._stream("/api/chat", request)

    def pull(self, model: str, *, insecure: bool = False, typed: bool = False) -> Iterator[Event]:
        """`POST /api/pull`: progress. `typed`: a person typed the name, which may then lead to a private address."""
        return self._stream("/api/pull", {"model": model, "insecure": insecure}, typed=typed)

    def push(self, model: str, *, insecure: bool = False, typed: bool = False) -> Iterator[Event]:
        """`POST /api/push`: progress. `typed` as for `pull`."""
        return self._stream("/api/push", {"model": model, "insecure": insecure}, typed=typed)

    def create(self, request: Mapping[str, Any]) -> Iterator[Event]:
        """`POST /api/create`: progress."""
        return self._stream("/api/create", request)

    # Answers in one.

    def embed(self, request: Mapping[str, Any]) -> Event:
        """`POST /api/embed`."""
        return self._json("POST", "/api/embed", request)

    def tags(self) -> list[Event]:
        """`GET /api/tags`: the models there are."""
        return list(self._json("GET", "/api/tags").get("models") or [])

    def ps(self) -> list[Event]:
        """`GET /api/ps`: the models that are loaded."""
        return list(self._json("GET", "/api/ps").get("models") or [])

    def show(self, model: str, **fields: Any) -> Event:
        """`POST /api/show`."""
        return self._json("POST", "/api/show", {"model": model, **fields})

    def copy(self, source: str, destination: str) -> None:
        """`POST /api/copy`."""
        self._send("POST", "/api/copy", {"source": source, "destination": destination})

    def delete(self, model: str) -> None:
        """`DELETE /api/delete`."""
        self._send("DELETE", "/api/delete", {"model": model})

    def version(self) -> str:
        """`GET /api/version`."""
        return str(self._json("GET", "/api/version").get("version", ""))

    def unload(self, model: str) -> None:
        """Let a model go as soon as it is idle."""
        for _ in self.generate({"model": model, "keep_alive": 0, "stream": False}):
            pass

    def has_blob(self, digest: str) -> bool:
        """`HEAD /api/blobs/<digest>`."""
        try:
            self._send("HEAD", f"/api/blobs/{digest}")
        except RsllmError as error:
            if getattr(error, "status", None) == 404 or isinstance(error, errors.ModelNotFoundError):
                return False
            raise
        return True

    def upload(self, digest: str, content: Iterable[bytes]) -> None:
        """`POST /api/blobs/<digest>`."""
        self._send("POST", f"/api/blobs/{digest}", content=content)

    def is_up(self) -> bool:
        """Whether a server answers; nothing is started."""
        start, self._start = self._start, None
        try:
            self._send("HEAD", "/")
        except ServerUnreachableError:
            return False
        except RsllmError:  # it does not like us, but it is there
            return True
        finally:
            self._start = start
        return True

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # How.

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Event:
        response = self._send(method, path, body)
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ServerError(f"{self.address} answered {path} with something that is no JSON object")
        return value

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content: Iterable[bytes] | None = None,
    ) -> httpx2.Response:
        response = self._open(method, path, body, content)
        try:
            response.read()
        except Exception as error:
            raise self._broken(error) from error
        finally:
            response.close()
        return response

    def _stream(self, path: str, body: Mapping[str, Any], *, typed: bool = False) -> Iterator[Event]:
        response = self._open("POST", path, body, None, self._proof(path, body) if typed else None)
        try:
            for line in response.iter_lines():
                if line.strip():
                    yield self._event(line)
        except RsllmError:
            raise
        except Exception as error:
            raise self._broken(error) from error
        finally:
            response.close()

    def _proof(self, path: str, body: Mapping[str, Any]) -> Mapping[str, str] | None:
        """The header that says that a person typed the name; for servers of this machine alone."""
        from rsllm.typed import HEADER, signature

        value = signature(path, str(body["model"])) if self.address.is_loopback else None
        return None if value is None else {HEADER: value}

    def _event(self, line: str) -> Event:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise ServerError(f"{self.address} sent a line that is no JSON object: {line[:80]!r}")
        if event.get("error"):
            raise error_from(event, None)
        return event

    def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content: Iterable[bytes] | None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """The response, its head read, and none that is an error."""
        import httpx2

        data = {} if body is None else {"json": dict(body)}
        for attempt in range(2):
            request = self._http.build_request(method, path, content=content, headers=headers, **data)  # type: ignore[arg-type]
            try:
                response = self._http.send(request, stream=True)
                break
            except httpx2.ConnectError as error:
                if attempt or self._start is None:
                    raise ServerUnreachableError(
                        f"could not connect to a server at {self.address}", hint="start one with `rsllm serve`"
                    ) from error
                self._start()
            except Exception as error:
                raise self._broken(error) from error
        if response.status_code < 400:
            return response
        try:
            raise error_from(_error_body(response), response.status_code)
        finally:
            response.close()

    def _broken(self, error: Exception) -> RsllmError:
        if isinstance(error, RsllmError):
            return error
        return ServerUnreachableError(
            f"the connection to {self.address} broke: {error or type(error).__name__}",
            hint="the server may have ended: look at its log",
        )


def error_from(body: Mapping[str, Any], status: int | None) -> RsllmError:
    """The exception for an error's body.

    >>> error_from({"error": "model 'x' not found"}, 404)
    ModelNotFoundError("model 'x' not found")
    """
    text = str(body.get("error") or f"the server answered with status {status}")
    hint = body.get("hint") if isinstance(body.get("hint"), str) else None
    kind = getattr(errors, str(body.get("kind")), None)
    if isinstance(kind, type) and issubclass(kind, RsllmError):
        return kind(text, hint=hint)
    if status == 404:
        return errors.ModelNotFoundError(text, hint=hint)
    if status == 503:
        return errors.QueueFullError(text, hint=hint)
    return ServerError(text, status=status, hint=hint)


def _error_body(response: httpx2.Response) -> Mapping[str, Any]:
    data = b""
    try:
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > _ERROR_LIMIT:
                break
        value = json.loads(data)
    except Exception:  # whatever stands there, the status is what counts
        value = None
    if isinstance(value, dict):
        return value
    text = data[:200].decode(errors="replace").strip()
    return {"error": f"the server answered with status {response.status_code}" + (f": {text}" if text else "")}
