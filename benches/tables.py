"""Prints a benchmark record as Markdown tables."""

from __future__ import annotations

from statistics import median
from typing import Any

from benches.engines import ENGINES
from benches.record import Record

OURS = "rsllm"


def print_tables(record: Record) -> None:
    """Speeds by thread count, then ratios to the best peer, then load time and memory."""
    data = record.data
    print(f"\n**{data['model']['file']}** ({data['model']['bytes'] / 1e6:.0f} MB) on {data['machine']['name']}")
    threads = sorted({n for cell in data["cells"].values() for n in cell}, key=int)
    for n in threads:
        print_speeds(record, int(n))
    print_engines(data)


def print_speeds(record: Record, threads: int) -> None:
    """Median tokens/s of each engine and test, with the range, and rsllm's ratio to each peer."""
    cells = [name for name, runs in record.data["cells"].items() if str(threads) in runs]
    engines = list(dict.fromkeys(name for cell in cells for name in record.data["cells"][cell][str(threads)]))
    print(f"\n{threads} thread{'s' if threads > 1 else ''}: tokens/s, median (range, n)")
    print("Decoding: GB/s of weights, and how many plain loops read from the same file at that time\n")
    print("| engine | " + " | ".join(cells) + " |")
    print("| --- |" + " --- |" * len(cells))
    for engine in engines:
        print(f"| {engine} | " + " | ".join(speed(record, cell, threads, engine) for cell in cells) + " |")
    for ours, peer in pairs(engines):
        found = [ratio(record, cell, threads, ours, peer) for cell in cells]
        print(f"| {ours} / {peer} | " + " | ".join(found) + " |")


def pairs(engines: list[str]) -> list[tuple[str, str]]:
    """Who is compared with whom: rsllm with every peer; limited to an instruction set, with the peer limited so."""
    found = []
    for ours in (spec for spec in ENGINES.values() if spec.worker == ENGINES[OURS].worker and spec.name in engines):
        peers = [name for name in engines if ENGINES[name].worker != ours.worker]
        found += [(ours.name, peer) for peer in peers if ours.counterpart in (None, peer)]
    return found


def speed(record: Record, cell: str, threads: int, engine: str) -> str:
    """One cell of the table; a star marks runs that other processes disturbed."""
    rates = tokens_per_second(record, cell, threads, engine)
    if not rates:
        return "-"
    text = f"{median(rates):.4g} ({min(rates):.4g}-{max(rates):.4g}, {len(rates)})"
    weights = record.data["model"].get("decode_bytes_per_token")
    if cell.startswith("decode") and weights:
        text += f" {median(rates) * weights / 1e9:.1f} GB/s"
        limits = [
            run["read_bytes_per_second"] for run in record.runs(cell, threads, engine) if "read_bytes_per_second" in run
        ]
        if limits:
            text += f" of {median(limits) / 1e9:.1f}: {median(rates) * weights / median(limits):.0%}"
    disturbed = any(run["foreign_cores"] > 0.2 for run in record.runs(cell, threads, engine))
    return text + (" *" if disturbed else "")


def ratio(record: Record, cell: str, threads: int, ours: str, peer: str) -> str:
    """The median of `ours` over that of `peer`."""
    rates, others = (tokens_per_second(record, cell, threads, engine) for engine in (ours, peer))
    return f"{median(rates) / median(others):.2f}" if rates and others else "-"


def tokens_per_second(record: Record, cell: str, threads: int, engine: str) -> list[float]:
    """The rate of each repetition."""
    return [run["tokens"] / run["seconds"] for run in record.runs(cell, threads, engine)]


def print_engines(data: dict[str, Any]) -> None:
    """Version, load time and largest memory of each engine."""
    print("\n| engine | version | load s | anonymous MiB | mapped MiB |\n| --- | --- | --- | --- | --- |")
    for name, entry in data["engines"].items():
        loads = f"{median(entry['load_seconds']):.2f}" if entry["load_seconds"] else "-"
        peaks = entry["memory"].values()
        own, mapped = (max((peak[kind] for peak in peaks), default=0) >> 20 for kind in ("anonymous", "mapped"))
        print(f"| {name} | {entry.get('version', '-')} | {loads} | {own} | {mapped} |")
        for failure in entry.get("failures", []):
            print(f"|  | failed: {failure} | | | |")
