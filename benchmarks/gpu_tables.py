"""The tables of docs/gpu.md from the results of ``gpu_evidence.py``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Dense bfloat16 operations per second, from NVIDIA's data sheets.
NOMINAL = {"H100": 989e12, "H200": 989e12}
BEGIN, END = "<!-- tables of benchmarks/gpu_evidence.py -->", "<!-- end of these tables -->"

Records = Mapping[str, Mapping[str, Any]]  # by the name of the measurement


@dataclass(frozen=True)
class Peaks:
    """The bfloat16 operations per second of a card: those of a large product, and those of its data sheet."""

    measured: float | None
    nominal: float | None

    def shares(self, flops: float) -> list[str]:
        """Return operations per second as shares of both peaks; empty where a peak is not known."""
        return [f"{flops / peak:.1%}" if peak else "" for peak in (self.measured, self.nominal)]


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page, in Markdown; of a measurement that was repeated, the last one."""
    of_stage: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        of_stage.setdefault(record["stage"], {})[record["measurement"]] = record
    ceilings = of_stage.get("ceilings", {})
    card = ceilings.get("environment", {}).get("card", "an unknown card")
    peaks = Peaks(
        measured=ceilings.get("product of torch.bfloat16", {}).get("per_second"),
        nominal=next((peak for name, peak in NOMINAL.items() if name in card), None),
    )
    extractions = of_stage.get("extract", {})
    shares = ["of measured peak", "of nominal peak"]
    of_extraction = ["extraction", "cache", "rows/s", "MB/s", "seconds", "model alone", "ratio", *shares]
    parts = [
        f"Measured on: {card}.",
        table(["ceiling", "operations or bytes per second"], _ceilings(ceilings)),
        table(of_extraction, _extractions(extractions, peaks)),
        table(["one batch of", "milliseconds by kind of operation"], _profiles(extractions)),
        table(
            ["training step", "products", "steps/s", *shares],
            _training(of_stage.get("training", {}), peaks),
        ),
        table(
            ["headline row", "prepare, s", "extract, s", "fit, s", "test accuracy"],
            _headline(of_stage.get("headline", {})),
        ),
        table(["training run", "minutes", "test score"], _runs(of_stage.get("science", {}))),
    ]
    return "\n\n".join(part for part in parts if part)


def _ceilings(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "per_second" in record:
            yield [name, f"{record['per_second']:.3g}"]


def _extractions(records: Records, peaks: Peaks) -> Iterator[list[str]]:
    for name, record in records.items():
        for place, speed in record.get("by_place", {}).items():
            rows, alone = speed["rows_per_second"], record["model_alone"]
            yield [
                name,
                "memory" if place == "/dev/shm" else "disk",
                f"{rows:,.0f}",
                f"{speed['bytes_per_second'] / 1e6:,.0f}",
                f"{speed['seconds']:.1f}",
                f"{alone:,.0f}",
                f"{rows / alone:.2f}",
                *peaks.shares(rows * record["flops_per_row"]),
            ]


def _profiles(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "profile" in record:
            by_kind = record["profile"]["by_kind"].items()
            yield [name, ", ".join(f"{kind} {milliseconds:.2f}" for kind, milliseconds in by_kind)]


def _training(records: Records, peaks: Peaks) -> Iterator[list[str]]:
    for name, record in records.items():
        if "steps_per_second" in record:
            speed = record["steps_per_second"]
            yield [name, record["compute"], f"{speed:.1f}", *peaks.shares(speed * record["flops_per_step"])]


def _headline(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "test_score" in record:
            seconds = (f"{record['seconds'][stage]:.1f}" for stage in ("prepare", "extract", "fit"))
            yield [name, *seconds, f"{record['test_score']:.1%}"]


def _runs(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "minutes" in record:
            yield [name, f"{record['minutes']:.1f}", f"{record['answer']['test_score']:.1%}"]


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a table in Markdown, or nothing without rows."""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else ""


def write_tables(page: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace the tables between the two marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{tables(records)}\n\n{END}{after}")
