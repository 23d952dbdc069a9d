"""Paths that others than their handlers need to know."""

from __future__ import annotations

__all__ = ["PROBES"]

PROBES = ("/healthz", "/readyz", "/metrics")
"""Asked for over and over by machines: no use of the server, and no line in its log."""
