"""`rsllm prune`: remove from the store what no model needs."""

from __future__ import annotations

from typing import Any

import click

from rsllm.cli.common import json_option, print_json
from rsllm.durations import parse_duration
from rsllm.errors import StoreError

__all__ = ["command"]


class _Age(click.ParamType):  # type: ignore[type-arg]
    """A duration as Go writes it, or whole seconds."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            seconds = float(int(value)) if str(value).isdigit() else parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{value!r} is not a duration such as 90m: {error}", parameter, context)
        if seconds < 0:
            self.fail("an age cannot be negative", parameter, context)
        return seconds


@click.command("prune")
@click.option("-y", "--yes", is_flag=True, help="Remove the files; without it they are only listed.")
@click.option(
    "--older-than",
    type=_Age(),
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Spare files that were used since. What a running rsllm is about to need is spared whatever its age.",
)
@json_option
def command(yes: bool, older_than: float, as_json: bool) -> None:
    """List, and with --yes remove, what no model of the store needs: blobs, and downloads that were given up.

    \b
    Examples:
      rsllm prune
      rsllm prune --yes
      rsllm prune --yes --older-than 0
    """
    from rsllm.refs.progress import format_bytes
    from rsllm.store.store import Store

    store = Store.default()
    pruned = store.prune(dry_run=not yes, older_than_seconds=older_than)
    names = [digest.file_name for digest in pruned.blobs] + list(pruned.partials)
    if as_json:
        print_json(
            {
                "store": str(store.root),
                "removed": yes and pruned.skipped is None,
                "files": names,
                "bytes": pruned.bytes,
                "skipped": pruned.skipped,
            }
        )
    if pruned.skipped is not None:
        raise StoreError(
            f"nothing was removed: {pruned.skipped}",
            path=str(store.root),
            hint="remove the damaged model with `rsllm rm`; `rsllm doctor --store` says what is wrong",
        )
    if as_json:
        return
    if not names:
        click.echo("Every file is needed, or was used lately.")
        return
    click.echo("\n".join(names))
    size = format_bytes(pruned.bytes)
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    click.echo(f"Removed {files}, {size}." if yes else f"{files}, {size}; `rsllm prune --yes` removes them.")
