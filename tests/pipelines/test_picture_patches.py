"""Pictures read by patches of training pictures, pooled in cells, with ridge and with kernel ridge readouts."""

import itertools
import json
import math
import shlex
import shutil
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from reservoir_cache import locked
from reservoir_pipelines import explain, extract, fit, predict
from reservoir_pipelines.extraction.extractor import load_extractor
from reservoir_pipelines.fitting import baselines, kernel_fitter
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.candidates import make_fitter
from reservoir_pipelines.fitting.fit_data import FitData
from reservoir_pipelines.prediction.export import build
from reservoir_pipelines.preparation.prepare import prepare
from sklearn.datasets import load_digits

from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.input_poolings import THRESHOLD
from reservoir.inputs.convolutions import PatchConvolution
from reservoir.inputs.patch_units import draw_units, framed, mirrored_places
from reservoir.loaded_model import load_model
from reservoir.options import ExtractOptions, FitOptions, RowOptions
from reservoir.pooling import find_pooling
from reservoir.readouts import kernel_ridge
from reservoir.readouts.kernel_ridge import KernelReadout
from reservoir.reservoir import Reservoir
from reservoir.tasks import task_named
from reservoir.tasks.pictures import Picture, patches

RNG = np.random.default_rng(0)
PHOTOGRAPHS = RNG.normal(size=(30, 12, 12, 3)).cumsum(axis=1).cumsum(axis=2).astype(np.float32)
PICTURE = Picture(side=12, channels=3, patch=4, window=5, stride=1)
WIDTH = 16
SMALL = {"input": "patches", "backbone": f"kernels:width={WIDTH}", "patch": 4, "stride": 2}


@pytest.fixture(scope="module")
def units():
    return draw_units(PHOTOGRAPHS, PICTURE, WIDTH, seed=0)


def responses(units, pictures, picture=PICTURE, gain=1.0):
    tokens = torch.from_numpy(patches(pictures, picture.patch))
    computed, counts = PatchConvolution(units, picture, gain)(tokens, torch.full((len(tokens),), tokens.shape[1]))
    assert counts.tolist() == [picture.places] * len(tokens) and computed.shape[1] == picture.places
    return computed


def test_responses_are_products_of_whitened_windows_with_unit_patches(units):
    computed = responses(units, PHOTOGRAPHS[:2], gain=2.0).numpy().reshape(2, -1, 2, 2, WIDTH // 4)
    side = math.isqrt(PICTURE.places)
    for place, (size, of_size, middle) in itertools.product(
        (0, 5, side * side - 1), [(0, units.large, slice(0, 5)), (1, units.small, slice(1, 4))]
    ):
        down, right = divmod(place, side)
        window = framed(PHOTOGRAPHS[:2])[:, down : down + 5, right : right + 5][:, middle, middle]
        window = window.reshape(2, -1).astype(np.float64)
        window -= window.mean(axis=1, keepdims=True)
        window /= np.sqrt(window.var(axis=1, keepdims=True) + units.noise)
        expected = 2 * (window @ of_size.weights.T - of_size.offsets).reshape(2, 2, -1)
        np.testing.assert_allclose(computed[:, place, :, size], expected, rtol=1e-3, atol=1e-3)
    # Whitened windows have variance 1 in each direction, except for those that are held down as noise.
    assert 0.4 < responses(units, PHOTOGRAPHS).std() < 1.2


def test_units_stand_in_mirrored_pairs_and_depend_on_pictures_and_seed_alone(units):
    for of_size, window in ((units.large, 5), (units.small, 3)):
        first, second = np.split(of_size.weights, 2)
        np.testing.assert_allclose(first[:, mirrored_places(window, 3)], second, atol=1e-4)
    again, other = (draw_units(PHOTOGRAPHS, PICTURE, WIDTH, seed=seed) for seed in (0, 1))
    assert np.array_equal(again.large.weights, units.large.weights)
    assert not np.allclose(other.large.weights, units.large.weights)
    assert not np.allclose(draw_units(PHOTOGRAPHS[::-1], PICTURE, WIDTH, seed=0).large.weights, units.large.weights)
    with pytest.raises(InputError, match="14 units are not pairs"):
        draw_units(PHOTOGRAPHS, PICTURE, 14, seed=0)


def test_uniform_pictures_have_units_and_no_responses():
    flat = np.full((4, 12, 12, 3), 7, np.float32)
    units = draw_units(flat, PICTURE, WIDTH, seed=0)
    assert np.isfinite(units.small.weights).all() and torch.isfinite(responses(units, PHOTOGRAPHS)).all()


def pool(name, hidden):
    lengths = torch.full((len(hidden),), hidden.shape[1])
    return find_pooling(name).of(HiddenStates(hidden, lengths))[:, 0].numpy()


@pytest.mark.parametrize(("side", "number"), [(6, 3), (4, 1), (5, 2), (7, 3)])
def test_the_excess_of_cells_equals_numpy(side, number):
    hidden = torch.from_numpy(RNG.normal(size=(3, side * side, 4)).astype(np.float32) * 2)
    computed = pool(f"excess{number}", hidden).reshape(3, 2, number, number, 4)
    # Each place becomes ``number`` x ``number`` equal ones, so that cells have whole places.
    fine = hidden.numpy().reshape(3, side, side, 4).repeat(number, axis=1).repeat(number, axis=2)
    for sign, factor in enumerate((1, -1)):
        excess = np.maximum(factor * fine - THRESHOLD, 0).reshape(3, number, side, number, side, 4)
        np.testing.assert_allclose(computed[:, sign], np.sqrt(excess.mean(axis=(2, 4))), rtol=1e-4, atol=1e-3)


def test_features_of_mirrored_pictures_are_equal_and_nothing_below_the_threshold_counts(units):
    mirrored = np.ascontiguousarray(PHOTOGRAPHS[:3, :, ::-1])
    of_pictures, of_mirrored = (pool("mirrored3", responses(units, rows)) for rows in (PHOTOGRAPHS[:3], mirrored))
    np.testing.assert_allclose(of_pictures, of_mirrored, rtol=1e-3, atol=1e-3)
    assert not np.allclose(*(pool("excess3", responses(units, rows)) for rows in (PHOTOGRAPHS[:3], mirrored)), atol=0.1)
    assert not pool("excess2", torch.full((1, 16, 2), 0.99 * THRESHOLD)).any()


def test_cells_need_a_picture_and_mirrored_ones_pairs():
    assert find_pooling("excess3").shape(10, 49, 1) == (1, 180)
    assert find_pooling("mirrored3").shape(10, 49, 1) == (1, 90)
    for name, width, tokens, why in (
        ("excess3", 4, 48, "48 tokens are not a square"),
        ("excess8", 4, 49, "at least 8 x 8"),
        ("mirrored2", 5, 49, "not pairs"),
    ):
        with pytest.raises(InputError, match=why):
            find_pooling(name).shape(width, tokens, 1)


@pytest.mark.parametrize(
    ("name", "parameters", "picture"),
    [
        ("cifar10", {}, Picture(32, 3, 4, 6, 1)),
        ("cifar10-lra", {}, Picture(32, 1, 1, 6, 1)),  # a sequence of grey pixels is read as a picture
        ("mnist", {}, Picture(32, 1, 4, 6, 1)),
        ("digits", {}, Picture(8, 1, 2, 6, 1)),
    ],
)
def test_tasks_of_pictures_are_read_as_such(name, parameters, picture):
    assert Picture.of(task_named(name, **parameters).task, 6, 1) == picture
    assert picture.places == (picture.side - 1) ** 2


@pytest.mark.parametrize(
    ("name", "parameters", "window", "stride", "why"),
    [
        ("bit-xor", {}, 6, 1, "not square pictures"),
        ("listops", {}, 6, 1, "not square pictures"),
        ("cifar10", {"window": 6}, 6, 1, "not square pictures of plain pixels"),
        ("digits", {}, 5, 2, "windows do not fill pictures of 8 pixels"),
        ("digits", {}, 9, 1, "windows do not fill"),
    ],
)
def test_other_tasks_and_windows_are_refused(name, parameters, window, stride, why):
    with pytest.raises(InputError, match=why):
        Picture.of(task_named(name, **parameters).task, window, stride)


def test_a_model_without_training_rows_is_refused():
    with pytest.raises(InputError, match="drawn from the training rows"):
        load_model(
            task_named("digits").task, Reservoir(backbone="kernels:width=16", init="random", input="patches", patch=4)
        )


def test_fit_prints_commands_that_compare_a_model_of_own_pictures_with_patches(tmp_path, call, cache):
    images, labels = load_digits(n_class=2, return_X_y=True)
    np.savez(tmp_path / "my pictures.npz", x=images[:60].reshape(-1, 8, 8).astype(np.uint8), y=labels[:60])
    model = {"backbone": "mini", "layers": "embed", "pool": "mean", "limit": 30, "pixels": 16, "cache": cache}
    fit(extract(tmp_path / "my pictures.npz", **model), columns="embed/mean", select="cv3", class_weight="balanced")
    (note,) = (line for line in call("tasks")[2].splitlines() if "raw pixels are a weak baseline" in line)
    commands = [shlex.split(command) for command in note.partition("need no model: ")[2].split(" && ")]
    assert [arguments[:2] for arguments in commands] == [["reservoir", name] for name in ("extract", "fit", "compare")]
    assert commands[0][3:] == ["--pixels", "16", "--limit", "30"]
    # The options of the fit, but for the names of columns, which patches do not have.
    assert commands[1][5:] == ["--select", "cv3", "--class-weight", "balanced"]
    for _, *arguments in commands:
        code, out, err = call(*arguments)
        assert code == 0, err
        assert "weak baseline" not in err
    assert "on the same" in out


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return extract("digits", pool="mirrored2,excess2", cache=tmp_path_factory.mktemp("cache"), **SMALL)


@pytest.fixture(scope="module")
def new_pictures(tmp_path_factory):
    images, labels = load_digits(return_X_y=True)
    file = tmp_path_factory.mktemp("new") / "new.npz"
    np.savez(file, x=images[:50].reshape(-1, 8, 8).astype(np.uint8), y=labels[:50])
    return file


def test_the_key_has_the_seed_and_the_rows_that_the_patches_come_from(features, tmp_path):
    spec = features.store.entry.spec
    assert (spec.input.kind, spec.input.patch, spec.input.stride, spec.input.gain) == ("patches", 4, 2, 1.0)
    others = [
        extract("digits", pool="excess2", cache=tmp_path, **SMALL, **changes).store.entry.key
        for changes in ({"limit": 40}, {"limit": 41}, {"limit": 40, "seed": 1})
    ]
    assert len({spec.key, *others}) == 4
    whole = extract("digits", limit=8, input="patches", pool="excess2", cache=tmp_path)
    assert (whole.store.entry.spec.backbone.family, whole.store.entry.spec.input.patch) == ("kernels", 8)


def test_a_copied_entry_is_fitted_and_one_without_units_is_refused_before_the_fit(tmp_path, call):
    settings = {"limit": 40, "pool": "excess2", "cache": tmp_path / "first", **SMALL}
    made = extract("digits", **settings)
    units = made.entry / "input"
    url = f"file://{tmp_path}/share"
    # An entry of an earlier version has its units among the derived arrays.
    units.rename(made.entry / "moments")
    assert call("cache", "copy", "digits", url, "--cache", tmp_path / "first")[0] == 0
    assert call("cache", "copy", url, "digits", "--cache", tmp_path / "second")[0] == 0
    copied = tmp_path / "second" / made.entry.relative_to(tmp_path / "first")
    assert Bundle.load(fit(copied, select="valid").saved).parts[0].units is not None
    for folder in ("input", "moments"):
        (copied / folder / "manifest.json").unlink(missing_ok=True)
    with pytest.raises(InputError, match="units of its input layer are missing; extract its task again"):
        FitData.open_entries(copied)
    shutil.rmtree(units)
    shutil.rmtree(made.entry / "moments")
    assert extract("digits", **settings).rows == made.rows and (units / "patch-units.h5").is_file()


def test_labels_have_no_part_in_the_units(features):
    options = ExtractOptions(pool="excess2", cache=features.entry.parents[2], **SMALL)
    prepared = prepare("digits", RowOptions(), cache=features.entry.parents[2])
    model = load_extractor(options, prepared, features.entry.parents[2]).model
    picture = Picture.of(prepared.task, 4, 2)
    split = prepared.split("train").take(np.arange(prepared.rows["train"]))
    pictures = prepared.scaling(split.x).reshape(-1, 4, 4, 2, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 8, 8, 1)
    np.testing.assert_array_equal(model.units.small.weights, draw_units(pictures, picture, WIDTH, seed=0).small.weights)


def test_a_ridge_readout_is_explained_and_built_as_a_module_and_a_kernel_readout_is_not(
    features, new_pictures, tmp_path
):
    fitted = fit(features, select="valid", columns="embed/excess2")
    assert explain(fitted.saved, new_pictures, first=2, out=tmp_path / "why.png").plot.is_file()
    module = build(Bundle.load(fitted.saved), fitted.saved, "float32")
    split = prepare("digits", RowOptions(), cache=features.entry.parents[2]).split("test").take(np.arange(5))
    with torch.no_grad():
        logits = module(torch.from_numpy(split.x), torch.from_numpy(split.lengths).long())
    stored = features["test"]["embed/excess2"][:5].reshape(5, -1)
    expected = fitted.readout.probabilities(np.asarray(stored, np.float32))[:, 0]
    np.testing.assert_allclose(logits.softmax(dim=3).reshape(5, 10), expected, atol=0.02)
    kernel = fit(features, select="valid", columns="embed/excess2", readout="arccos", out=tmp_path / "kernel")
    with pytest.raises(InputError, match="only linear readouts"):
        explain(kernel.saved, new_pictures, out=tmp_path / "no.png")


@pytest.mark.parametrize("readout", ["ridge", "arccos"])
def test_a_saved_readout_predicts_new_pictures_as_fit_did(features, new_pictures, readout):
    fitted = fit(features, readout=readout, select="valid")
    assert fitted.best.test_score > 0.9 and fitted.best.readout == readout
    rows = list(predict(fitted.saved, new_pictures))
    assert np.mean([row.label == row.truth for row in rows]) > 0.9
    bundle = Bundle.load(fitted.saved)
    assert bundle.parts[0].units is not None and isinstance(bundle.readout, KernelReadout) == (readout == "arccos")
    card = json.loads(fitted.saved.read_text())
    assert "units" not in json.dumps(card)  # arrays are not part of the JSON


def test_a_kernel_readout_adds_to_ridge_and_its_chosen_penalty_is_the_best(features):
    fitted = fit(features, readout="arccos", columns="embed/excess2")
    of_kernel = [result for result in fitted.table if result.readout == "arccos"]
    assert len(of_kernel) == 9 and max(of_kernel, key=lambda result: result.sort_key).alpha == fitted.best.alpha
    ridge = fit(features, columns="embed/excess2", select="valid")
    assert fitted.best.valid_score >= ridge.best.valid_score


def test_many_rows_choose_by_some_and_are_factorised_on_disk_and_resumed(features, monkeypatch):
    whole = fit(features, readout="arccos", columns="embed/mirrored2", select="valid", alphas="0.01:0.01:1")
    monkeypatch.setattr(kernel_fitter, "CHOICE_ROWS", 300)
    monkeypatch.setattr(kernel_fitter, "ROWS_IN_MEMORY", 500)
    monkeypatch.setattr(kernel_ridge, "PANEL", 256)
    save, saved = kernel_fitter.PanelsOnDisk.save, []

    def save_some(self, number, panel):
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(number)
        save(self, number, panel)

    monkeypatch.setattr(kernel_fitter.PanelsOnDisk, "save", save_some)
    settings = {"readout": "arccos", "columns": "embed/mirrored2", "select": "valid", "alphas": "0.01:0.1:2"}
    with pytest.raises(KeyboardInterrupt):
        fit(features, **settings)
    assert len([*features.entry.glob("factor-*/panel*.npy")]) == 2
    monkeypatch.setattr(kernel_fitter.PanelsOnDisk, "save", lambda *panel: (saved.append(panel[1]), save(*panel)))
    resumed = fit(features, **settings)
    assert saved[:3] == [0, 1, 2] and not [*features.entry.glob("factor-*")]
    assert [result.readout for result in resumed.table[:2]] == ["arccos on 300 of 1,078 training rows"] * 2
    if resumed.best.alpha == whole.best.alpha:
        readouts = [Bundle.load(fitted.saved).readout for fitted in (whole, resumed)]
        np.testing.assert_allclose(readouts[1].dual, readouts[0].dual, rtol=1e-6, atol=1e-9)


def test_baselines_of_a_kernel_readout_are_fitted_to_the_same_rows():
    for select, refits in (("auto", True), ("valid", False)):
        fitter = make_fitter(FitOptions(readout="arccos", select=select), 10)
        assert fitter.refits == baselines._ridge_of(fitter, chooses=True).refits == refits


def test_a_second_factorisation_of_an_entry_waits_for_the_first(features, monkeypatch):
    monkeypatch.setattr(kernel_fitter, "CHOICE_ROWS", 300)
    monkeypatch.setattr(kernel_fitter, "ROWS_IN_MEMORY", 500)
    messages = []
    with ExitStack() as other_process:
        other_process.enter_context(locked(features.entry))

        def notify(message):
            messages.append(message)
            if "waiting for another process" in message:
                other_process.close()

        monkeypatch.setattr(kernel_fitter, "notify", notify)
        fit(features, readout="arccos", columns="embed/mirrored2", select="valid", alphas="0.01:0.01:1")
    assert len(messages) == 1 and not [*features.entry.glob("factor-*")]


def test_some_of_the_rows_are_drawn_and_named(features):
    fitted = fit(features, readout="arccos:rows=200", columns="embed/mirrored2", select="valid")
    assert fitted.best.readout == "arccos on 200 of 1,078 training rows"
    assert Bundle.load(fitted.saved).readout.rows.shape == (200, 2 * WIDTH * 4 // 2)
    for readout in ("arccos:rows=0", "arccos:columns=3", "arccos:rows=70000"):
        with pytest.raises(InputError, match="number of rows"):
            fit(features, readout=readout)


@pytest.mark.parametrize("settings", [{"class_weight": "balanced"}, {"select": "cv5"}, {"curve": "10"}])
def test_what_a_kernel_readout_does_not_do_is_refused(features, settings):
    with pytest.raises(InputError):
        fit(features, readout="arccos", **settings)


def test_the_numbers_of_cells_are_constants_of_an_exported_model():
    class Pooled(torch.nn.Module):
        def forward(self, x):
            lengths = torch.full((len(x),), x.shape[1])
            return find_pooling("excess3").of(HiddenStates(x, lengths))[:, 0]

    hidden = torch.randn(2, 256, 4)
    program = torch.export.export(Pooled(), (hidden,), strict=False)
    assert len(program.graph.nodes) < 100  # 256 places in 9 cells are 2,304 numbers
    torch.testing.assert_close(program.module()(hidden), torch.as_tensor(pool("excess3", hidden)))
