"""Asking again: what fails by chance is repeated after a pause, what is refused is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx2

from rsllm.errors import DownloadError, RegistryError
from rsllm.registry.settings import RegistrySettings

__all__ = ["NoRangesError", "ask", "insist", "worth_retrying"]

_Result = TypeVar("_Result")
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_ASK_SECONDS = 0.5
_INSIST_SECONDS = 1.0


class NoRangesError(DownloadError):
    """The server sends the whole blob, whatever range it is asked for."""


def worth_retrying(error: DownloadError) -> bool:
    """Not what a registry says for good, nor what was refused."""
    if isinstance(error, NoRangesError):
        return False
    return not isinstance(error, RegistryError) or error.status in _RETRIED


async def ask(request: Callable[[], Awaitable[_Result]], settings: RegistrySettings) -> _Result:
    """The answer to a small request, for which somebody waits: a few tries, and none after one that took long."""

    def again(error: DownloadError) -> bool:
        return worth_retrying(error) and not isinstance(error.__cause__, httpx2.TimeoutException)

    return await _repeated(request, again, settings.ask_attempts, _ASK_SECONDS, settings)


async def insist(request: Callable[[], Awaitable[_Result]], settings: RegistrySettings) -> _Result:
    """The answer to a request on which the whole transfer depends; raises `RegistryError` after the last try."""
    try:
        return await _repeated(request, worth_retrying, settings.attempts, _INSIST_SECONDS, settings)
    except DownloadError as error:
        if not worth_retrying(error):
            raise
        raise RegistryError(f"max retries exceeded: {error}", hint=error.hint) from error


async def _repeated(
    request: Callable[[], Awaitable[_Result]],
    again: Callable[[DownloadError], bool],
    attempts: int,
    seconds: float,
    settings: RegistrySettings,
) -> _Result:
    for number in range(attempts - 1):
        try:
            return await request()
        except DownloadError as error:
            if not again(error):
                raise
            await settings.sleep(seconds * 2.0**number)
    return await request()
