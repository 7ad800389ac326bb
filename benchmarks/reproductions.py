"""Write the page of the paper's tables and claims, and the numbers of other pages, from the finished cells.

    python benchmarks/reproductions.py            # write; runs nothing, and takes seconds
    python benchmarks/reproductions.py --check    # name the files that would change, with exit code 1
    python benchmarks/reproductions.py --add FOLDER --scale day       # add the cells of a folder of reproduce; write
    python benchmarks/reproductions.py --unpack FOLDER --scale day    # write the cells into such a folder

It also writes the tables between marks in README.md, docs/leaderboard.md and docs/reproduce.md, and three pictures.

The cells are the lines of benchmarks/results/*.jsonl (committed.py describes them). The recipes of the package give
tables and claims, so that a new claim needs no new run. reproductions.toml names the tables of each file and the
sentences of other pages whose numbers are written, and has the published numbers and the opening of REPRODUCTION.md;
a number in them is {file | table | row | column}.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from committed import RESULTS, add, results_text, unpack
from headline import draw_headline, headline_results, leaderboard_table, readme_table
from PIL import Image
from pretraining import COMPARISONS, claims_table, draw_pretraining, inits_table
from reservoir_pipelines import report
from reservoir_pipelines.files import json_digest
from reservoir_pipelines.paper.claims import FAILS, HOLDS, INCONCLUSIVE
from reservoir_pipelines.paper.page import number_text, reproduction_part
from reservoir_pipelines.paper.recipe import load_recipe, recipe_names
from reservoir_pipelines.paper.reproduction_folder import ReproductionFolder
from reservoir_pipelines.plots import PagePlot, new_figure

ROOT = Path(__file__).resolve().parent.parent
HERE = Path("benchmarks")
PAGE, SETTINGS = HERE / "REPRODUCTION.md", HERE / "reproductions.toml"
README, LEADERBOARD, ANSWER = Path("README.md"), Path("docs/leaderboard.md"), Path("docs/reproduce.md")
PICTURES = Path("docs/pictures")
NUMBER = r"[\d,]*\.?\d+"
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Numbers:
    """The filled tables of all folders, by folder and name."""

    tables: Mapping[tuple[str, str], Mapping[str, Any]]

    def text(self, name: str) -> str:
        """Return the number at ``folder | table | row | column``, as the page shows it, or a count of claims."""
        kind, *rest = [part.strip() for part in name.split("|")]
        if kind == "claims":
            return f"{self.counts[rest[0]]:,}"
        table, row, column, *what = rest
        spot = self._spot(kind, table, row, column)
        value, measure = spot["mean"], spot["measure"]
        if what and what[0] in ("low", "high"):
            value = spot["interval"][what[0] == "high"]
        elif what:
            value = spot["by_seed"][int(what[0].removeprefix("seed "))]
        if value is None:
            raise SystemExit(f"{SETTINGS}: {{{name}}} has no finished cell; name another number")
        return number_text(value, measure)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many claims hold, do not hold, cannot be seen, differ between folders, or are open.

        ``comparisons`` counts the verdicts that rest on a 95% interval, ``by chance`` a twentieth of these, and
        ``at real scale`` the claims with a verdict on models that are not small.
        """
        claims = [(name, claim) for (_, name), table in self.tables.items() for claim in table["claims"]]
        verdicts: dict[tuple[str, str], set[str]] = {(name, claim["says"]): set() for name, claim in claims}
        for name, claim in claims:
            if claim["verdict"] in (HOLDS, FAILS, INCONCLUSIVE):
                verdicts[name, claim["says"]].add(claim["verdict"])
        alone = Counter(next(iter(by_scale)) for by_scale in verdicts.values() if len(by_scale) == 1)
        comparisons = sum(bool(claim["interval"]) for _, claim in claims)
        return {
            "all": len(verdicts),
            "ours": len({(name, claim["says"]) for name, claim in claims if claim["source"] == "ours"}),
            "hold": alone[HOLDS],
            "fail": alone[FAILS],
            "unseen": alone[INCONCLUSIVE],
            "differ": sum(len(by_scale) > 1 for by_scale in verdicts.values()),
            "open": sum(not by_scale for by_scale in verdicts.values()),
            "comparisons": comparisons,
            "by chance": round(comparisons / 20),
            "at real scale": len({(name, claim["says"]) for name, claim in claims if claim["real"]}),
        }

    def _spot(self, folder: str, table: str, row: str, column: str) -> Mapping[str, Any]:
        try:
            filled = self.tables[folder, table]
            spots = next(line["spots"] for line in filled["rows"] if line["name"] == row)
            return spots[filled["columns"].index(column)]
        except (KeyError, StopIteration, ValueError):
            raise SystemExit(
                f"{SETTINGS}: no number {folder} | {table} | {row} | {column}; correct it"
            ) from None


def unpack_all(root: Path, cells: Path) -> None:
    """Write the committed results as one folder of cells each, below ``cells``."""
    for name in read_settings(root)["folders"]:
        unpack(root / RESULTS / f"{name}.jsonl", ReproductionFolder(cells / name))


def read_settings(root: Path) -> dict[str, Any]:
    """Return the content of reproductions.toml."""
    return tomllib.loads((root / SETTINGS).read_text())


def save_tables(cells: Path, settings: Mapping[str, Any]) -> Numbers:
    """Write the tables of each folder below ``cells`` from the recipes of the package, and return them filled."""
    return Numbers(
        {
            (name, table["name"]): table
            for name, chosen in settings["folders"].items()
            for table in save_folder_tables(ReproductionFolder(cells / name), chosen)
        }
    )


def save_folder_tables(folder: ReproductionFolder, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write the tables of one folder, and return them filled; ``chosen`` is its entry in reproductions.toml."""
    recipes = [_recipe(folder, name, chosen) for name in chosen.get("tables") or recipe_names()]
    for recipe in recipes:
        folder.save_table(recipe)
    return [folder.fill(recipe) for recipe in recipes]


def _recipe(folder: ReproductionFolder, name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of a recipe; if the folder names its tables, without rows and columns that nobody ran."""
    arguments = {"seeds": chosen["seeds"], "override": chosen.get("override", {})}
    table = load_recipe(name, chosen["scale"], **arguments).table
    if "tables" not in chosen:
        return table
    filled = folder.fill(table)
    spots = [spot for row in filled["rows"] for spot in row["spots"] if spot]
    columns = {spot["column"] for spot in spots if spot["mean"] is not None}
    rows = {spot["row"] for spot in spots if spot["mean"] is not None or not spot["cells"]}
    return load_recipe(name, chosen["scale"], only=[*rows, *columns], **arguments).table


def fill_opening(text: str, numbers: Numbers) -> str:
    """Return the opening of the page with its numbers."""
    return PLACEHOLDER.sub(lambda match: numbers.text(match[1]), text)


def fill_sentence(text: str, sentence: str, numbers: Numbers, where: str) -> str:
    """Return a page whose only sentence of this form has the numbers of its cells."""
    names = PLACEHOLDER.findall(sentence)
    # A space may be a line break on the page, because prose is wrapped; a line break is one.
    fixed = [r"\s+".join(map(re.escape, part.split(" "))) for part in PLACEHOLDER.split(sentence)[::2]]
    pattern = re.compile("(" + f"){NUMBER}(".join(fixed) + ")")
    if (count := len(pattern.findall(text))) != 1:
        problem = f"{where}: {count} sentences like {sentence!r}"
        raise SystemExit(f"{problem}; keep exactly one, or correct {SETTINGS}")

    def written(match: re.Match[str]) -> str:
        values = [*map(numbers.text, names), ""]
        return "".join(part + value for part, value in zip(match.groups(), values, strict=True))

    return pattern.sub(written, text)


def pages(root: Path, cells: Path, numbers: Numbers) -> dict[Path, str]:
    """Return the text of each page by its path, from tables and cells in the folder ``cells``."""
    settings = read_settings(root)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "page.md"
        report([cells / name for name in settings["folders"]], markdown=True, out=out)
        texts = {PAGE: fill_opening(settings["page"]["opening"], numbers) + "\n" + out.read_text()}
    for entry in settings["numbers"]:
        path = Path(entry["file"])
        text = texts.get(path) or (root / path).read_text()
        base = f"{entry['base']} | " if "base" in entry else ""
        sentence = PLACEHOLDER.sub(lambda match, base=base: f"{{{base}{match[1]}}}", entry["text"])
        texts[path] = fill_sentence(text, sentence, numbers, entry["file"])
    for (path, name), table in marked_tables(root, cells, numbers).items():
        texts[path] = fill_block(texts.get(path) or (root / path).read_text(), name, table)
    return texts


def marked_tables(root: Path, cells: Path, numbers: Numbers) -> dict[tuple[Path, str], str]:
    """Return the tables that stand between marks on other pages, by page and name."""
    results = headline_results(ReproductionFolder(cells / "full"))
    published = {
        row: {column: fill_opening(text, numbers) for column, text in texts.items()}
        for row, texts in read_settings(root)["published"].items()
    }
    return {
        (README, "headline"): readme_table(results),
        (LEADERBOARD, "leaderboard"): leaderboard_table(results, published),
        (ANSWER, "claims"): claims_table(numbers.tables),
        (ANSWER, "inits"): inits_table(numbers.tables),
    }


def fill_block(text: str, name: str, table: str) -> str:
    """Return a page with a table between the marks of its name."""
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    return f"{before}{mark}{table}{rest[rest.index('<!-- end -->') :]}"


@dataclass(frozen=True)
class Picture:
    """A picture that is drawn from finished cells; it is drawn again when ``shown``, its numbers, changes."""

    path: Path
    size: tuple[float, float]
    draw: Callable[[Any], None]
    shown: Any

    @property
    def digest(self) -> str:
        """The SHA-256 of the numbers that the picture shows."""
        return json_digest({"shown": self.shown})

    def is_current(self, root: Path) -> bool:
        """Whether the file was drawn from these numbers."""
        if not (root / self.path).exists():
            return False
        with Image.open(root / self.path) as image:
            return image.info.get("Description", "") == self.digest

    def save(self, root: Path) -> None:
        """Draw the picture."""
        with new_figure(*self.size) as figure:
            self.draw(figure)
            metadata = {"Description": self.digest, "Software": None}
            figure.savefig(root / self.path, dpi=130, metadata=metadata)


def pictures(cells: Path, numbers: Numbers) -> list[Picture]:
    """Return the pictures of accuracy over cost, of the headline, and of what pretraining adds."""
    costs = reproduction_part(ReproductionFolder(cells / "hour"), 1)["plots"]
    results = headline_results(ReproductionFolder(cells / "full"))
    inits = [numbers.tables[comparison.part, comparison.table] for comparison in COMPARISONS]
    scores = {task: [str(result), str(result.published)] for task, result in results.items()}
    return [
        Picture(
            PICTURES / "reproduction-hour.png", (13, 6), partial(draw_costs, costs), [p.text for p in costs]
        ),
        Picture(PICTURES / "headline.png", (9, 4.4), partial(draw_headline, by_task=results), scores),
        Picture(
            PICTURES / "pretraining.png",
            (9, 5),
            partial(draw_pretraining, tables=numbers.tables),
            [row for table in inits for row in table["rows"]],
        ),
    ]


def draw_costs(plots: Sequence[PagePlot], figure: Any) -> None:
    """Draw one panel for each plot, and the legend in the place of the last one."""
    *panels, last = figure.subplots(2, (len(plots) + 2) // 2).flat
    for axes, plot in zip(panels, plots, strict=True):
        plot.draw(axes, *plot.arguments)
        axes.set_title(plot.name, fontsize=11)
        axes.get_legend().remove()
    last.axis("off")
    last.legend(*panels[0].get_legend_handles_labels(), loc="center", frameon=False)


def result_files(cells: Path, numbers: Numbers) -> dict[Path, str]:
    """Return the text of each file of results by its path, from the folder ``cells``."""
    # The numbers that each cell gives, by the folder and the key of the cell.
    shown: dict[str, dict[str, set[str]]] = {folder: {} for folder, _ in numbers.tables}
    for (folder, name), table in numbers.tables.items():
        for spot in (spot for row in table["rows"] for spot in row["spots"] if spot):
            for key in chain.from_iterable(spot["cells"]):
                number = f"{name} | {spot['row']} | {spot['column']}"
                shown[folder].setdefault(key, set()).add(number)
    return {
        RESULTS / f"{folder}.jsonl": results_text(ReproductionFolder(cells / folder).results(), by_key)
        for folder, by_key in shown.items()
    }


def changes(root: Path, cells: Path, numbers: Numbers) -> dict[Path, str]:
    """Return the pages and results that differ from what the cells in the folder ``cells`` give, by path."""
    texts = result_files(cells, numbers) | pages(root, cells, numbers)
    return {
        path: text
        for path, text in texts.items()
        if not (root / path).exists() or (root / path).read_text() != text
    }


def write_folder(name: str, path: Path) -> None:
    """Write committed results as the folder of a reproduction, with its tables."""
    folder = ReproductionFolder(path)
    count = unpack(ROOT / RESULTS / f"{name}.jsonl", folder)
    save_folder_tables(folder, read_settings(ROOT)["folders"][name])
    print(f"{path}: {count} cells written; those that it had are kept")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--check", action="store_true", help="write nothing, and name the files that would change"
    )
    choice.add_argument(
        "--add",
        type=Path,
        metavar="FOLDER",
        help="add the finished cells of a folder of reproduce, then write",
    )
    choice.add_argument(
        "--unpack",
        type=Path,
        metavar="FOLDER",
        help="write the cells that a folder of reproduce lacks, and no page",
    )
    names = list(read_settings(ROOT)["folders"])
    parser.add_argument("--scale", choices=names, help="name of the results, for --add and --unpack")
    options = parser.parse_args(arguments)
    if (options.add or options.unpack) and not options.scale:
        parser.error(f"--scale is missing; name one of {', '.join(names)}")
    if options.add and not (options.add / "cells").is_dir():
        parser.error(f"{options.add}: not a folder with results of reproduce; name such a folder")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check all pages and results, or unpack results."""
    options = parse(arguments)
    if options.unpack:
        write_folder(options.scale, options.unpack)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        cells = Path(temporary)
        unpack_all(ROOT, cells)
        if options.add:
            counts = add(ReproductionFolder(options.add), ReproductionFolder(cells / options.scale))
            print(f"{options.add}: {', '.join(f'{count} {kind}' for kind, count in counts.items())}")
        numbers = save_tables(cells, read_settings(ROOT))
        changed = changes(ROOT, cells, numbers)
        outdated = [picture for picture in pictures(cells, numbers) if not picture.is_current(ROOT)]
    state = "differs from its cells" if options.check else "written"
    for path in (*(picture.path for picture in outdated), *changed):
        print(f"{path}: {state}")
    if not options.check:
        for picture in outdated:
            picture.save(ROOT)
        for path, text in changed.items():
            (ROOT / path).parent.mkdir(exist_ok=True)
            (ROOT / path).write_text(text)
    return int(options.check and bool(outdated or changed))


if __name__ == "__main__":
    sys.exit(main())
