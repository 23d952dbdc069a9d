"""Prints a benchmark record as Markdown tables."""

from __future__ import annotations

from statistics import median
from typing import Any

from benches.engines import ENGINES
from benches.record import Record

OURS = "rsllm"


def print_tables(record: Record) -> None:
    """Speeds by thread count with ratios to each peer and to the best one, then load time and memory."""
    data = record.data
    print(f"\n**{data['model']['file']}** ({data['model']['bytes'] / 1e6:.0f} MB) on {data['machine']['name']}")
    if later := data.get("later_commits"):
        print(f"Of several builds: {', '.join([data['commit'], *later])}")
    threads = sorted({n for cell in data["cells"].values() for n in cell}, key=int)
    for n in threads:
        print_speeds(record, int(n))
    print_engines(data)


def print_speeds(record: Record, threads: int) -> None:
    """Median tokens/s of each engine and test with the range; rsllm's ratio to each peer, and to the best."""
    cells = sorted((name for name, runs in record.data["cells"].items() if str(threads) in runs), key=place)
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
    if OURS in engines:
        print(f"| {OURS} / best peer | " + " | ".join(ratio_to_best(record, cell, threads) for cell in cells) + " |")


def place(cell: str) -> tuple[bool, list[int]]:
    """Prefill before decode, the shorter ones first: where a test stands among the others."""
    return not cell.startswith("prefill"), [int(word) for word in cell.split() if word.isdigit()]


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
    """The median of `ours` over that of `peer`, and the range of that of the repetitions they had side by side."""
    rates, others = (tokens_per_second(record, cell, threads, engine) for engine in (ours, peer))
    if not rates or not others:
        return "-"
    each = [rate / other for rate, other in zip(rates, others, strict=False)]
    return f"{median(rates) / median(others):.2f} ({min(each):.2f}-{max(each):.2f})"


def ratio_to_best(record: Record, cell: str, threads: int) -> str:
    """The ratio to the peer with the largest median, and who that is. Engines limited on our side are not meant."""
    measured = record.data["cells"][cell][str(threads)]
    peers = [name for name, runs in measured.items() if ENGINES[name].worker != ENGINES[OURS].worker and runs]
    if not peers or not measured.get(OURS):
        return "-"
    best = max(peers, key=lambda name: median(tokens_per_second(record, cell, threads, name)))
    return f"{ratio(record, cell, threads, OURS, best)} {best}"


def tokens_per_second(record: Record, cell: str, threads: int, engine: str) -> list[float]:
    """The rate of each repetition."""
    return [run["tokens"] / run["seconds"] for run in record.runs(cell, threads, engine)]


def print_engines(data: dict[str, Any]) -> None:
    """Version, load time and largest memory of each engine, and what part of it rsllm takes."""
    head = "engine | version | load s | to a token s | rsllm's part | anonymous MiB | rsllm's part | mapped MiB"
    print(f"\n| {head} |\n|" + " --- |" * len(head.split("|")))
    ours = data["engines"].get(OURS, {})
    for name, entry in data["engines"].items():
        loads = f"{median(entry['load_seconds']):.2f}" if entry["load_seconds"] else "-"
        ready, anonymous = seconds_to_token(entry), peak(entry, "anonymous")
        words = [name, entry.get("version", "-"), loads, f"{ready:.2f}" if ready else "-"]
        words += [part(seconds_to_token(ours), ready), str(int(anonymous) >> 20)]
        words += [part(peak(ours, "anonymous"), anonymous), str(int(peak(entry, "mapped")) >> 20)]
        print("| " + " | ".join(words) + " |")
        for failure in entry.get("failures", []):
            print(f"|  | failed: {failure} |" + " |" * (len(head.split("|")) - 2))


def seconds_to_token(entry: dict[str, Any]) -> float:
    """From the start of the load to the end of the first token; 0 where it was not measured."""
    return median(entry.get("first_token_seconds") or [0.0])


def peak(entry: dict[str, Any], kind: str) -> float:
    """The most memory of a kind, in bytes, with any number of threads."""
    return float(max((found[kind] for found in entry.get("memory", {}).values()), default=0))


def part(ours: float, other: float) -> str:
    """What part of `other` is `ours`."""
    return f"{ours / other:.2f}" if ours and other else "-"
