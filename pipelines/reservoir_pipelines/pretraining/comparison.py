"""The stage ``compare-pretraining``: backbones of one shape, pretrained on equally many tokens of several corpora."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir import InputError
from reservoir.pretraining.corpora import BYTES, HELD_OUT, STREAMS, Text, corpus_named
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.recipe import choose_recipe
from reservoir.reservoir import Reservoir, choose_compute, choose_device, load_model
from reservoir.tasks.bits import BitMemory
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.output import say
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.pretraining.bit_memory import BIT_MEMORY, ROW_TOKENS, rows_of
from reservoir_pipelines.pretraining.compared import Compared, Comparison, plot_comparison, write_comparison
from reservoir_pipelines.pretraining.outcome import Pretraining
from reservoir_pipelines.pretraining.pretrain import BACKBONE, BATCH_TOKENS, pretrain
from reservoir_pipelines.training.train import STEPS, train
from reservoir_pipelines.workspace import cache_root

TEXT, RANDOM = "text", "random"
CORPORA = (TEXT, BIT_MEMORY, *reversed(STREAMS), RANDOM)
TOKENS = 2**22


def compare_pretraining(
    task: str,
    *,
    corpora: str | Sequence[str] = CORPORA,
    text: Path | None = None,
    backbone: str = BACKBONE,
    tokens: int = TOKENS,
    batch_tokens: int = BATCH_TOKENS,
    vocabulary: int = BYTES,
    steps: int = STEPS,
    output_only: bool = False,
    seed: int = 0,
    limit: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    compute: str = "auto",
    out: Path | None = None,
) -> Comparison:
    """Pretrain a shape on each corpus and read a task out of each backbone: by the output alone, and as an FPT.

    Whatever is there already is reused, and what is unfinished goes on: backbones, cached features, and training runs.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    corpora : str or sequence of str, default `CORPORA`
        What to pretrain on, comma-separated; ``random`` is the shape as it was drawn.
    text : Path, optional
        File or folder of the corpus ``text``.
    backbone : str, default "mini"
        Gives the shape.
    tokens : int, default 4,194,304
        Tokens that each pretraining reads, to the nearest step.
    batch_tokens, vocabulary
        As for `reservoir_pipelines.pretraining.pretrain.pretrain`.
    steps : int, default 5000
        Steps of each FPT, otherwise trained as `reservoir_pipelines.training.train.train` does by default.
    output_only : bool, default False
        Leave out the FPTs.
    seed : int, default 0
        Seed of pretraining, of the input layer, and of training.
    limit, parameters, data, cache, device, compute
        As for `reservoir_pipelines.extraction.extract.extract`. The backbones lie below the cache's ``pretrained``.
    out : Path, optional
        Folder of the results; by default one below the cache's ``comparisons``, named by all that changes a number.

    Raises
    ------
    InputError, CacheError
        For input that cannot be used.
    DivergedError
        If a pretraining diverges.
    """
    started = time.monotonic()
    if tokens < 1 or steps < 1:
        raise InputError(f"--tokens {tokens} --steps {steps}: give whole numbers from 1")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: give at least 1 row")
    if out is not None:
        _check_out(out)
    names = choose_corpora(corpora, text)
    root = cache_root(cache)
    shape = Reservoir.choose(backbone, RANDOM, seed)
    place = {"cache": root, "device": device, "compute": compute}
    maker = _Maker(shape, text, tokens, batch_tokens, vocabulary, place)
    prepared = prepare(task, data=data, cache=root, parameters=parameters)
    described = prepared.task
    load_model(described, shape, device, compute)
    for name in names:  # what does not work is refused before anything is pretrained
        maker.check(name)
    rows = []
    for number, name in enumerate(names, 1):
        say(f"{number} of {len(names)}: {backbone}, {name}")
        made = None if name == RANDOM else maker.make(name)
        weights = {"backbone": made.folder, "init": "pretrained"} if made else {"backbone": backbone, "init": RANDOM}
        settings = {**weights, "seed": seed, "limit": limit, "parameters": parameters, "data": data, **place}
        rows.append(_read_out(name, made, task, None if output_only else steps, settings))
    asked = {"data": prepared.digest, "parameters": dict(parameters or {}), "limit": limit}
    asked |= {"steps": None if output_only else steps, "pretrained": maker.asked(names)}
    folder = out or root / "comparisons" / described.name / f"{maker.title}-{tokens}-{_digest(asked)[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    results, plot = folder / "results.csv", folder / "comparison.png"
    write_comparison(results, rows)
    plot_comparison(plot, rows, f"{described.name}: {backbone}, pretrained on {tokens:,} tokens")
    return Comparison(
        task=described.name,
        backbone=backbone,
        rows=tuple(rows),
        results=results,
        plot=plot,
        seconds=time.monotonic() - started,
    )


def choose_corpora(corpora: str | Sequence[str], text: Path | None) -> list[str]:
    """Return the corpora of a comma-separated list, each once.

    Raises
    ------
    InputError
        If there is no such corpus, or the text is not there.
    """
    parts = corpora.split(",") if isinstance(corpora, str) else corpora
    names = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for name in names:
        if name not in CORPORA:
            raise InputError(f"--corpora {name}: no such corpus; choose among {', '.join(CORPORA)}")
    if not names:
        raise InputError(f"--corpora: name at least one of {', '.join(CORPORA)}")
    if TEXT in names and text is None:
        raise InputError(
            "--corpora text: say which with --text PATH, a file or a folder; or leave text out of --corpora"
        )
    if text is not None and not text.exists():
        raise InputError(f"--text {text}: no such file or folder")
    if TEXT not in names and text is not None:
        raise InputError(f"--text {text}: text is not among --corpora {','.join(names)}; add it, or leave --text out")
    return names


def _check_out(out: Path) -> None:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out}: {there.name} is no folder; name another")


def _read_out(
    corpus: str, made: Pretraining | None, task: str, steps: int | None, settings: Mapping[str, Any]
) -> Compared:
    """Fit the output alone, and train an FPT for so many steps; None for no FPT."""
    best = fit(extract(task, **settings), device=settings["device"]).best
    fpt = None
    if steps is not None:
        # One that diverges is told by the best weights before, so that the other corpora are still compared.
        fpt = train(task, steps=steps, resume=True, on_divergence="report", **settings)
    return Compared(corpus=corpus, pretraining=made, output_only=best, fpt=fpt)


@dataclass(frozen=True)
class _Maker:
    """Pretrains a shape on one corpus after the other, in folders below the cache that are named by the settings."""

    shape: Reservoir
    text: Path | None
    tokens: int
    batch_tokens: int
    vocabulary: int
    place: Mapping[str, Any]

    @property
    def title(self) -> str:
        return self.shape.title.removesuffix(f"-{RANDOM}")

    def check(self, corpus: str) -> None:
        """Raise `InputError` if the corpus cannot be had so, or the shape cannot be pretrained on it."""
        if corpus == RANDOM:
            return
        settings = self._settings(corpus)
        source = None if corpus == BIT_MEMORY else corpus_named(self._name(corpus), self.vocabulary)
        model = LanguageModel(self.shape.backbone, self.vocabulary, self.shape.seed)
        if source is None:
            load_model(BitMemory().task, self.shape, self.place["device"], self.place["compute"])
            return
        recipe = choose_recipe(model, self.shape.backbone, **settings)
        for split in HELD_OUT:
            source.held_out(split, recipe.context + model.extra)

    def asked(self, corpora: Sequence[str]) -> dict[str, Any]:
        """Return what changes a number of the pretrainings, and of what is read out of them."""
        return {
            "shape": self.shape.to_dict(),
            "corpora": [self._describe(corpus) for corpus in sorted(corpora)],
            "tokens": self.tokens,
            "batch_tokens": self.batch_tokens,
            "vocabulary": self.vocabulary,
            "compute": self._compute,
        }

    def make(self, corpus: str) -> Pretraining:
        """Return what the pretraining came to, now or earlier."""
        settings = self._settings(corpus)
        key = {
            "backbone": self.shape.backbone,
            "vocabulary": self.vocabulary,
            **settings,
            "compute": self._compute,
            "corpus": self._describe(corpus),
        }
        folder = f"{self.title}-{corpus}-{_digest(key)[:16]}"
        return pretrain(
            self._name(corpus),
            out=self.place["cache"] / "pretrained" / folder,
            resume=True,
            backbone=self.shape.backbone,
            vocabulary=self.vocabulary,
            **settings,
            **self.place,
        )

    def _settings(self, corpus: str) -> dict[str, int]:
        whole = rows_of(self.batch_tokens) * ROW_TOKENS if corpus == BIT_MEMORY else self.batch_tokens
        steps = max(1, round(self.tokens / max(1, whole)))
        return {"steps": steps, "batch_tokens": self.batch_tokens, "seed": self.shape.seed}

    def _name(self, corpus: str) -> str:
        return str(self.text.resolve()) if corpus == TEXT and self.text else corpus

    @property
    def _compute(self) -> str:
        return choose_compute(self.place["compute"], choose_device(self.place["device"]))

    def _describe(self, corpus: str) -> dict[str, object]:
        if corpus == TEXT and self.text:
            # The bytes tell one text from another, and need no tokenizer to be trained.
            return Text(self.text, min(self.vocabulary, BYTES)).describe()
        return STREAMS[corpus](self.vocabulary).describe() if corpus in STREAMS else {"corpus": corpus}


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
