"""The stage ``compare-pretraining``: backbones of one shape, pretrained on equally many tokens of several corpora."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reservoir_cache import aside, path_below

from reservoir.errors import InputError
from reservoir.options import (
    ComparisonOptions,
    ModelOptions,
    PlaceOptions,
    PretrainOptions,
    RowOptions,
    ShapeOptions,
)
from reservoir.pretraining.corpora import BYTES, HELD_OUT, STREAMS, Text, corpus_named
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.recipe import choose_recipe
from reservoir.readouts import metric_name
from reservoir.reservoir import Reservoir, choose_compute, choose_device, load_model
from reservoir.tasks.bits import BitMemory
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.files import write_csv
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.pretraining.bit_memory import BIT_MEMORY, ROW_TOKENS, rows_of
from reservoir_pipelines.pretraining.compared import Compared, Comparison, plot_comparison
from reservoir_pipelines.pretraining.pretrain import pretrain
from reservoir_pipelines.stage import stage
from reservoir_pipelines.training.train import STEPS, train
from reservoir_pipelines.workspace import cache_root

TEXT, RANDOM = "text", "random"
CORPORA = (TEXT, BIT_MEMORY, *reversed(STREAMS), RANDOM)


@stage
def compare_pretraining(
    task: str, shape: ShapeOptions, source: RowOptions, options: ComparisonOptions, place: PlaceOptions
) -> Comparison:
    """Pretrain a shape on each corpus and read a task out of each backbone: by the output alone, and as an FPT.

    Whatever is there already is reused, and what is unfinished goes on: backbones, cached features, and training runs.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    **options
        Fields of `ShapeOptions`, `RowOptions`, `ComparisonOptions` and `PlaceOptions`. The corpus ``random`` is the
        shape as it was drawn; ``steps``, 5000, are those of each FPT, otherwise trained as `train` does by default. The
        backbones lie below the cache's ``pretrained``, and the results below its ``comparisons``, named by all that
        changes a number.

    Examples
    --------
    >>> from reservoir_pipelines import compare_pretraining
    >>> shape = "mini:n_layer=1,n_embd=16"
    >>> found = compare_pretraining("digits", backbone=shape, corpora="random", output_only=True, limit=60)
    >>> [row.corpus for row in found.rows]
    ['random']
    """
    started = time.monotonic()
    if options.out is not None:
        _check_out(options.out)
    names = choose_corpora(options.corpora, options.text_file)
    place = replace(place, cache=cache_root(place.cache))
    drawn = Reservoir.choose(ModelOptions(backbone=shape.backbone, seed=shape.seed, init=RANDOM))
    steps = None if options.output_only else options.steps or STEPS
    shapes = _Shapes(drawn, options, place)
    prepared = prepare(task, source, cache=place.cache)
    load_model(prepared.task, drawn, place.device, options.compute)
    for name in names:  # what does not work is refused before anything is pretrained
        shapes.check(name)
    rows = []
    for number, name in enumerate(names, 1):
        notify(f"{number} of {len(names)}: {drawn.backbone}, {name}")
        rows.append(_compare(name, shapes, task, source, steps))
    settings = {"data": prepared.digest, "parameters": source.given, "limit": source.limit, "steps": steps}
    key = _digest(settings | {"pretrained": shapes.to_dict(names)})[:8]
    default = cache_root(place.cache) / "comparisons" / prepared.task.name / f"{shapes.title}-{options.tokens}-{key}"
    folder = options.out or default
    folder.mkdir(parents=True, exist_ok=True)
    results, plot, metric = folder / "results.csv", folder / "comparison.png", metric_name(prepared.task.classes)
    write_csv(results, [rows[0].cells(), *(row.cells().values() for row in rows)])
    title = f"{prepared.task.name}: {drawn.backbone}, pretrained on {options.tokens:,} tokens"
    plot_comparison(plot, rows, title, metric)
    return Comparison(
        task=prepared.task.name,
        backbone=drawn.backbone,
        metric=metric,
        rows=tuple(rows),
        results=results,
        plot=plot,
        seconds=round(time.monotonic() - started, 3),
    )


def choose_corpora(corpora: str | Sequence[str], text: Path | None) -> list[str]:
    """Return the corpora of a comma-separated list, each once; the text has to be there."""
    parts = corpora.split(",") if isinstance(corpora, str) else corpora
    names = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for name in names:
        if name not in CORPORA:
            raise InputError(f"--corpora {name}: no such corpus; choose among {', '.join(CORPORA)}")
    if not names:
        raise InputError(f"--corpora: name at least one of {', '.join(CORPORA)}")
    if TEXT in names and text is None:
        raise InputError(
            "--corpora text: say which with --text-file PATH, a file or a folder; or leave text out of --corpora"
        )
    if text is not None and not text.exists():
        raise InputError(f"--text-file {text}: no such file or folder")
    if TEXT not in names and text is not None:
        raise InputError(
            f"--text-file {text}: text is not among --corpora {','.join(names)}; add it, or leave --text-file out"
        )
    return names


def _check_out(out: Path) -> None:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out}: {there.name} is no folder; name another")


def _compare(corpus: str, shapes: _Shapes, task: str, source: RowOptions, steps: int | None) -> Compared:
    """Pretrain, fit the output alone, and train an FPT for so many steps; None for no FPT."""
    made = None
    if corpus != RANDOM:
        made = pretrain(shapes.path(corpus), out=shapes.out(corpus), **shapes.settings(corpus))
    drawn, place = shapes.drawn, shapes.place
    weights = {"backbone": made.folder, "init": "pretrained"} if made else {"backbone": drawn.backbone, "init": RANDOM}
    settings = {**weights, "seed": drawn.seed, "compute": shapes.options.compute}
    with aside():
        features = extract(task, source, place, **settings)
    best = fit(features, device=place.device).best
    fpt = None
    if steps is not None:
        # One that diverges counts with the best weights before, so that the other corpora are still compared.
        fpt = train(task, source, place, steps=steps, resume=True, on_divergence="report", **settings)
    return Compared(corpus=corpus, pretraining=made, output_only=best, fpt=fpt)


@dataclass(frozen=True)
class _Shapes:
    """A shape and how it is pretrained, on one corpus after the other, in folders that are named by the settings."""

    drawn: Reservoir
    options: ComparisonOptions
    place: PlaceOptions

    @property
    def title(self) -> str:
        return self.drawn.title.removesuffix(f"-{RANDOM}")

    @property
    def compute(self) -> str:
        return choose_compute(self.options.compute, choose_device(self.place.device))

    def check(self, corpus: str) -> None:
        """Raise `InputError` if the corpus cannot be had so, or the shape cannot be pretrained on it."""
        if corpus == RANDOM:
            return
        settings, vocabulary = self.settings(corpus), self.options.vocabulary
        source = None if corpus == BIT_MEMORY else corpus_named(self.path(corpus), vocabulary)
        model = LanguageModel(self.drawn.backbone, vocabulary, self.drawn.seed)
        if source is None:
            load_model(BitMemory().task, self.drawn, self.place.device, self.options.compute)
            return
        options = PretrainOptions(steps=settings["steps"], batch_tokens=settings["batch_tokens"])
        recipe = choose_recipe(model, self.drawn.backbone, options, self.drawn.seed)
        for split in HELD_OUT:
            source.held_out(split, recipe.context + model.extra)

    def to_dict(self, corpora: Sequence[str]) -> dict[str, Any]:
        """Return what changes a number of the pretrainings, and of what is read out of them."""
        numbers = {name: getattr(self.options, name) for name in ("tokens", "batch_tokens", "vocabulary")}
        shape = {"shape": self.drawn.to_dict(), "corpora": [self._describe(corpus) for corpus in sorted(corpora)]}
        return shape | numbers | {"compute": self.compute}

    def settings(self, corpus: str) -> dict[str, Any]:
        """Return how `pretrain` is called for a corpus."""
        options, tokens = self.options, self.options.batch_tokens
        whole = rows_of(tokens) * ROW_TOKENS if corpus == BIT_MEMORY else tokens
        return {
            "steps": max(1, round(options.tokens / max(1, whole))),
            "batch_tokens": tokens,
            "vocabulary": options.vocabulary,
            "backbone": self.drawn.backbone,
            "seed": self.drawn.seed,
            "compute": options.compute,
            "resume": True,
            **vars(self.place),
        }

    def out(self, corpus: str) -> Path:
        """Return the folder of what is pretrained on a corpus."""
        settings = self.settings(corpus) | {"compute": self.compute, "corpus": self._describe(corpus)}
        key = _digest({name: value for name, value in settings.items() if name not in ("cache", "device", "resume")})
        return path_below(cache_root(self.place.cache), "pretrained", f"{self.title}-{corpus}-{key[:16]}")

    def path(self, corpus: str) -> str:
        """Return a corpus as `pretrain` takes it."""
        return str(self.options.text_file.resolve()) if corpus == TEXT and self.options.text_file else corpus

    def _describe(self, corpus: str) -> dict[str, object]:
        text, vocabulary = self.options.text_file, self.options.vocabulary
        if corpus == TEXT and text:
            # The bytes tell one text from another, and need no tokenizer to be trained.
            return Text(text, min(vocabulary, BYTES)).describe()
        return STREAMS[corpus](vocabulary).describe() if corpus in STREAMS else {"corpus": corpus}


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
