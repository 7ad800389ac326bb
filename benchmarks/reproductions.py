"""Write the page of the paper's tables and claims, and the numbers of other pages, from the finished cells.

    python benchmarks/reproductions.py            # write; runs nothing, and takes seconds
    python benchmarks/reproductions.py --check    # name the files that would change, with exit code 1

It also writes the tables between marks in README.md, docs/leaderboard.md and docs/reproduce.md, and three pictures.

The cells are those below benchmarks/reproductions. The recipes of the package give tables and claims, so that a new
claim needs no new run. reproductions.toml names the tables of each folder, and the sentences of other pages whose
numbers are written. REPRODUCTION.md begins with reproductions/opening.md; its numbers are written as {folder | table |
row | column}.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from headline import draw_headline, headline_results, leaderboard_table, readme_table
from PIL import Image
from pretraining import claims_table, draw_pretraining
from reservoir_pipelines import report
from reservoir_pipelines.claims import FAILS, HOLDS, UNSEEN
from reservoir_pipelines.files import json_digest
from reservoir_pipelines.plots import PagePlot, new_figure
from reservoir_pipelines.reports.reproduced import number_text, reproduction_part
from reservoir_pipelines.reproduction.recipe import load_recipe, recipe_names
from reservoir_pipelines.reproduction_folder import ReproductionFolder

ROOT = Path(__file__).resolve().parent.parent
HERE = Path("benchmarks")
PAGE, CELLS, SETTINGS = HERE / "REPRODUCTION.md", HERE / "reproductions", HERE / "reproductions.toml"
OPENING, PUBLISHED = CELLS / "opening.md", HERE / "published.toml"
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
            if claim["verdict"] in (HOLDS, FAILS, UNSEEN):
                verdicts[name, claim["says"]].add(claim["verdict"])
        alone = Counter(next(iter(given)) for given in verdicts.values() if len(given) == 1)
        comparisons = sum(bool(claim["interval"]) for _, claim in claims)
        return {
            "all": len(verdicts),
            "ours": len({(name, claim["says"]) for name, claim in claims if claim["source"] == "ours"}),
            "hold": alone[HOLDS],
            "fail": alone[FAILS],
            "unseen": alone[UNSEEN],
            "differ": sum(len(given) > 1 for given in verdicts.values()),
            "open": sum(not given for given in verdicts.values()),
            "comparisons": comparisons,
            "by chance": round(comparisons / 20),
            "at real scale": len({(name, claim["says"]) for name, claim in claims if claim["real"]}),
        }

    def _spot(self, folder: str, table: str, row: str, column: str) -> Mapping[str, Any]:
        try:
            filled = self.tables[folder, table]
            spots = next(one["spots"] for one in filled["rows"] if one["name"] == row)
            return spots[filled["columns"].index(column)]
        except (KeyError, StopIteration, ValueError):
            raise SystemExit(
                f"{SETTINGS}: no number {folder} | {table} | {row} | {column}; correct it"
            ) from None


def save_tables(root: Path, settings: Mapping[str, Any]) -> Numbers:
    """Write the tables of each folder below ``root`` from the recipes of the package, and return them filled."""
    tables = {}
    for name, chosen in settings["folders"].items():
        folder = ReproductionFolder(root / name)
        shutil.rmtree(folder.path / "tables", ignore_errors=True)
        (folder.path / "tables").mkdir()
        for table in chosen.get("tables") or recipe_names():
            recipe = _recipe(folder, table, chosen)
            folder.save_table(recipe)
            tables[name, table] = folder.fill(recipe)
    return Numbers(tables)


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


def pages(root: Path, cells: Path) -> dict[Path, str]:
    """Return the text of each page by its path, from tables and cells in the folder ``cells``."""
    settings = tomllib.loads((root / SETTINGS).read_text())
    numbers = save_tables(cells, settings)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "page.md"
        report([cells / name for name in settings["folders"]], markdown=True, out=out)
        texts = {PAGE: fill_opening((root / OPENING).read_text(), numbers) + "\n" + out.read_text()}
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
        for row, texts in tomllib.loads((root / PUBLISHED).read_text()).items()
    }
    return {
        (README, "headline"): readme_table(results),
        (LEADERBOARD, "leaderboard"): leaderboard_table(results, published),
        (ANSWER, "claims"): claims_table(numbers.tables),
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
    inits = [
        numbers.tables[key] for key in (("hour", "table2"), ("day", "table2"), ("mpnet", "table-inits"))
    ]
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


def changes(root: Path, cells: Path) -> dict[Path, str]:
    """Return the pages and tables that differ from what the cells give, by path; ``cells`` is a copy of the cells."""
    texts = pages(root, cells)
    for path in sorted(cells.glob("*/tables/*.json")):
        texts[CELLS / path.relative_to(cells)] = path.read_text()
    old = {path: (root / path).read_text() if (root / path).exists() else "" for path in texts}
    gone = {path.relative_to(root) for path in (root / CELLS).glob("*/tables/*.json")} - texts.keys()
    return {path: text for path, text in texts.items() if text != old[path]} | dict.fromkeys(gone, "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and name the files that would change"
    )
    check = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory() as folder:
        cells = Path(folder) / "cells"
        shutil.copytree(ROOT / CELLS, cells)
        changed = changes(ROOT, cells)
        numbers = save_tables(cells, tomllib.loads((ROOT / SETTINGS).read_text()))
        outdated = [picture for picture in pictures(cells, numbers) if not picture.is_current(ROOT)]
    for picture in outdated:
        print(f"{picture.path}: {'differs from its cells' if check else 'written'}")
        if not check:
            picture.save(ROOT)
    for path, text in changed.items():
        print(f"{path}: {'differs from its cells' if check else 'written' if text else 'removed'}")
        if not check and text:
            (ROOT / path).write_text(text)
        elif not check:
            (ROOT / path).unlink()
    return int(check and bool(outdated or changed))


if __name__ == "__main__":
    sys.exit(main())
