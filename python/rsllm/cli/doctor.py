"""`rsllm doctor`: what this machine offers, and what rsllm makes of it."""

from __future__ import annotations

from typing import Any

import click

from rsllm.cli.common import json_option, print_json, sections, table

__all__ = ["command"]


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Show CPU features, the kernels chosen and why, memory, and versions.

    \b
    Examples:
      rsllm doctor
      rsllm doctor --json
    """
    report = _report()
    if as_json:
        print_json(report)
        return
    from rsllm.refs.progress import format_bytes

    cpu, memory = report["cpu"], report["memory"]
    present = [name for name, there in cpu["features"].items() if there]
    absent = [name for name, there in cpu["features"].items() if not there]
    click.echo(
        sections(
            {
                "Processor": [
                    ("model", cpu["model"] or "unknown"),
                    ("threads", str(cpu["threads"])),
                    ("features", " ".join(present) or "none"),
                    ("not there", " ".join(absent) or "nothing"),
                    ("instruction set", f"{cpu['isa']} ({cpu['reason']})"),
                    ("also available", " ".join(cpu["available_isas"])),
                ],
                "Memory": [(name, format_bytes(count)) for name, count in memory.items()],
                "Devices": [("GPU", "this build has no GPU backend: everything runs on the CPU")],
                "Versions": list(report["versions"].items()),
                "Files": [("cache", report["cache"]["folder"]), ("models", format_bytes(report["cache"]["bytes"]))],
            }
        )
    )
    click.echo("\n  Kernels")
    rows = ([name, kernel["decode"], kernel["prefill"]] for name, kernel in cpu["kernels"].items())
    for line in table(rows, ("type", "decode", "prefill")).splitlines():
        click.echo("    " + line)


def _report() -> dict[str, Any]:
    from rsllm import machine
    from rsllm.config import config

    cache = config().cache_dir
    return {
        **machine.describe(),
        "cache": {
            "folder": str(cache),
            "bytes": sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.exists() else 0,
        },
    }
