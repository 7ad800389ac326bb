"""The accuracies of frozen readouts in RESULTS.md, each by its command: made again, compared, and written.

    python benchmarks/results.py --check --data DIR            # the cheap rows, against what RESULTS.md prints
    python benchmarks/results.py --check --data DIR --long     # all of them
    python benchmarks/results.py --write --data DIR --long     # run them, and write what they give

DIR holds the publishers' files, and ``--vit VIT`` the vision model that docs/guides/images.md imports; rows that need
them are left out without them. The rows are in results.toml, and the
tables of RESULTS.md between ``<!-- NAME -->`` and ``<!-- end -->`` are made from them. A row agrees if its scores do
within the last digit that is printed. Rows without ``--compute float32`` depend on the instruction set: features are of
bfloat16 where the processor multiplies it natively, and a choice among near ties may then fall on another column; on a
machine of the other kind they are shown and not judged.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from reservoir.reservoir import choose_compute, choose_device

HERE = Path(__file__).parent
ROWS, RESULTS = HERE / "results.toml", HERE / "RESULTS.md"
SHARES = ("valid", "test", "raw")
LAST_DIGIT = 0.1
HEADS = ("task", "train rows", "best readout", "valid", "test", "raw input", "paper", "cost", "instructions")


def make(row: dict[str, Any], places: dict[str, Path | None], cache: Path) -> dict[str, Any]:
    """Run the commands of a row and return what it is about."""
    arguments = [str(places.get(word, word)) for word in shlex.split(row["extract"])]
    entry = json.loads(_reservoir("extract", *arguments, "--cache", str(cache)))["entry"]
    found = json.loads(_reservoir("fit", entry, *shlex.split(row.get("fit", ""))))
    best, raw = found["best"], found["raw"]
    scores = {"valid": best["valid_score"], "test": best["test_score"], "raw": raw["test_score"]}
    columns = best["columns"]
    read = "+".join(columns) if len(columns) < 4 else f"{columns[0]} ... {columns[-1]} ({len(columns)} columns)"
    name = f"{read}, ridge {best['alpha']:.3g}"
    return {"best": name, **{name: round(100 * score, 1) for name, score in scores.items()}}


def agrees(row: dict[str, Any], found: dict[str, Any]) -> bool:
    """Return whether what was found is what the row says, within the last digit printed."""
    return all(abs(row[name] - found[name]) < 1.5 * LAST_DIGIT for name in SHARES)


def on_machine(row: dict[str, Any]) -> str:
    """Return whether a row depends on the instruction set."""
    return "any" if "--compute float32" in row["extract"] else row["compute"]


def tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the tables of RESULTS.md by name, each with its commands."""
    found = {}
    for name in dict.fromkeys(row["table"] for row in rows):
        mine = [row for row in rows if row["table"] == name]
        lines = ["| " + " | ".join(HEADS) + " |", "|---|--:|---|--:|--:|--:|--:|---|---|"]
        for row in mine:
            shares = [f"{row['valid']:.1f}", f"**{row['test']:.1f}**", f"{row['raw']:.1f}", str(row.get("paper", ""))]
            cells = [row["name"], f"{row['rows']:,}", f"`{row['best']}`", *shares, row["cost"], on_machine(row)]
            lines.append("| " + " | ".join(cells) + " |")
        commands = [
            f"    reservoir extract {row['extract']} && \\\n        reservoir fit "
            f"{' '.join([row['extract'].split()[0], *row.get('fit', '').split()])}"
            for row in mine
        ]
        found[name] = "\n".join([*lines, "", *dict.fromkeys(commands)])
    return found


def rendered(text: str, rows: list[dict[str, Any]]) -> str:
    """Return RESULTS.md with its tables as the rows make them."""
    for name, table in tables(rows).items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n{table}\n{rest[rest.index('<!-- end -->') :]}"
    return text


def _reservoir(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "reservoir_pipelines", *arguments, "--json"], stdout=-1, check=True)
    return done.stdout.decode()


def _write(rows: list[dict[str, Any]]) -> None:
    """Write the rows, and the tables made from them."""
    written = (
        "[[row]]\n" + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in row.items())
        for row in rows
    )
    ROWS.write_text("\n".join(written))
    RESULTS.write_text(rendered(RESULTS.read_text(), rows))


def main() -> int:
    """Run the rows; return 1 if one of them does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="Folder of the publishers' files.")
    parser.add_argument("--vit", type=Path, help="Folder of the imported vision model.")
    parser.add_argument("--long", action="store_true", help="Those of many minutes too.")
    parser.add_argument("--check", action="store_true", help="Exit with 1 where a row does not agree.")
    parser.add_argument("--write", action="store_true", help="Write what is found.")
    parser.add_argument("--cache", type=Path, help="Where features are kept; a temporary folder by default.")
    parser.add_argument("--only", default="", help="Rows whose name holds this.")
    asked = parser.parse_args()
    places = {"DIR": asked.data, "VIT": asked.vit}
    rows, wrong = tomllib.loads(ROWS.read_text())["row"], 0
    here = choose_compute("auto", choose_device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            lacking = any(name in row["extract"].split() and not place for name, place in places.items())
            if asked.only not in row["name"] or lacking or (row["cost"] == "long" and not asked.long):
                continue
            found = make(row, places, asked.cache or Path(folder))
            judged = on_machine(row) in ("any", here)
            verdict = ("agrees" if agrees(row, found) else "DIFFERS") if judged else f"not judged: here {here}"
            wrong += verdict == "DIFFERS"
            said = {name: row[name] for name in ("best", *SHARES)}
            print(
                f"{row['name']} (instructions: {on_machine(row)}): {verdict}\n  said  {said}\n  found {found}",
                flush=True,
            )
            if asked.write:
                row |= {**found, "compute": here}
    if asked.write:
        _write(rows)
    return int(asked.check and wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
