"""Starting child processes."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """For `preexec_fn`: Ctrl-C works in the child even when the tests run in the background.

    A shell without job control lets what it starts with `&` ignore the signal, children inherit that, and Python leaves
    an ignored signal alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
