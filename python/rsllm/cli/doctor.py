"""`rsllm doctor`: what this machine offers, and what rsllm makes of it."""

from __future__ import annotations

from typing import Any

import click

from rsllm.cli.common import json_option, print_json, sections, table
from rsllm.errors import StoreError

__all__ = ["command"]


@click.command("doctor")
@click.option("--store", is_flag=True, help="Check the model store instead: every manifest and every blob.")
@json_option
def command(store: bool, as_json: bool) -> None:
    """Show CPU features, the kernels chosen and why, memory, and versions.

    With --store, read every manifest and hash every blob of the model store; the exit code is 1 if one is wrong.

    \b
    Examples:
      rsllm doctor
      rsllm doctor --json
      rsllm doctor --store
    """
    if store:
        _check_store(as_json)
        return
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
                "Files": [
                    ("model store", report["store"]["folder"]),
                    ("cache", report["cache"]["folder"]),
                    ("in the cache", format_bytes(report["cache"]["bytes"])),
                ],
            }
        )
    )
    click.echo("\n  Kernels")
    rows = ([name, kernel["decode"], kernel["prefill"]] for name, kernel in cpu["kernels"].items())
    for line in table(rows, ("type", "decode", "prefill")).splitlines():
        click.echo("    " + line)


def _check_store(as_json: bool) -> None:
    from rsllm.refs.progress import default_progress, format_bytes
    from rsllm.store.check import examine
    from rsllm.store.store import Store

    store = Store.default(read_only=True)
    progress = default_progress()
    progress.start("checking the store", None)
    try:
        report = examine(store, progress=lambda done: progress.update(done, None))
    finally:
        progress.finish()
    if as_json:
        findings = [
            {"model": finding.model, "path": str(finding.path), "problem": finding.problem, "fix": finding.fix}
            for finding in report.findings
        ]
        figures = {name: getattr(report, name) for name in ("manifests", "blobs", "bytes", "unneeded", "unfinished")}
        print_json({"store": str(store.root), "ok": not findings, **figures, "findings": findings})
    else:
        for finding in report.findings:
            click.echo(f"{finding}\n    {finding.fix}")
        blobs = _count(report.blobs, "blob") + (f" ({report.unneeded} needed by no model)" if report.unneeded else "")
        unfinished = f", {_count(report.unfinished, 'unfinished file')}" if report.unfinished else ""
        models = _count(report.manifests, "model")
        click.echo(f"{store.root}: {models}, {blobs}{unfinished}, {format_bytes(report.bytes)} hashed")
    if report.findings:
        raise StoreError(f"the store has {_count(len(report.findings), 'fault')}", path=str(store.root))
    if not as_json:
        click.echo("Everything is as it should be.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _report() -> dict[str, Any]:
    from rsllm import machine
    from rsllm.config import config

    cache = config().cache_dir
    return {
        **machine.describe(),
        "store": {"folder": str(config().models_dir)},
        "cache": {
            "folder": str(cache),
            "bytes": sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.exists() else 0,
        },
    }
