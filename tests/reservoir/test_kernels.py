"""Input layers without a network: random kernels, the default for series, and counts of symbols by their level."""

import numpy as np
import pytest
import torch
from reservoir_pipelines import ReservoirClassifier, explain, export, extract, fit, predict, train
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.prediction.export import build

from reservoir.backbones import find, find_shape, load_backbone
from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.column import Column, layer_names
from reservoir.errors import InputError
from reservoir.features import forward
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.convolutions import KernelConvolution
from reservoir.inputs.input_layers import BRACKET_LEVELS, BracketCounter, Brackets
from reservoir.loaded_model import load_model
from reservoir.pooling import find_pooling, share_levels
from reservoir.reservoir import Reservoir
from reservoir.tasks import task_named
from reservoir.tasks.listops import SYMBOLS
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows
from tests.helpers import contents
from tests.pipelines.test_export import can_export, expected, read

SERIES = Windows(patch=9, dilations=(1, 2, 4), pad="same", normalise="differences")
WINDOWS = {
    "series": SERIES,
    "stride": Windows(patch=9, stride=3, dilations=(1, 2, 4), pad="same", normalise="differences"),
    "inside": Windows(patch=4, stride=2, dilations=(1, 3), normalise="both"),
    "one form": Windows(patch=5, dilations=(2,)),
    "symbols": Windows(patch=5, pad="same", symbols=4),
}


def rows_of(windows, channels):
    draw = torch.Generator().manual_seed(0)
    if windows.symbols:
        return torch.randint(windows.symbols, (3, 40), generator=draw)
    return torch.randn(3, 40, channels, generator=draw)


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("width", [8, 64, 136])
def test_responses_are_those_of_windows_times_a_matrix(windows, width):
    channels = windows.symbols or 2
    convolution = KernelConvolution(windows, channels, width, seed=1, gain=6.0)
    x, lengths = rows_of(windows, channels), torch.tensor([40, 31, 37])
    responses, counts = convolution(x, lengths)
    # Each kernel as a row of the matrix of an input layer, zero at other dilations and forms.
    matrix = torch.zeros(width, len(windows.dilations), windows.patch, windows.forms, channels)
    for bank in convolution.banks:
        taps = convolution.taps[bank.begin : bank.end].transpose(1, 2)
        matrix[bank.begin : bank.end, windows.dilations.index(bank.dilation), :, bank.form] = taps
    tokens, expected_counts = windows.of_tensors(x, lengths)
    assert torch.equal(counts, expected_counts) and responses.shape == (3, tokens.shape[1], width)
    assert (matrix.flatten(1).norm(dim=1) - 6.0).abs().max() < 1e-5
    assert windows.patch == 1 or convolution.taps.sum(dim=2).abs().max() < 1e-5
    expected = tokens @ matrix.flatten(1).T
    for row, count in enumerate(counts):
        torch.testing.assert_close(responses[row, :count], expected[row, :count], rtol=1e-4, atol=1e-4)


def test_kernels_of_one_dilation_and_form_stand_in_groups():
    banks = KernelConvolution(SERIES, 1, 8 * 20, seed=0, gain=1.0).banks
    places = [(dilation, form) for form in range(3) for dilation in (1, 2, 4)]
    assert [(bank.dilation, bank.form) for bank in banks] == places
    assert [bank.begin for bank in banks] == [0, *(bank.end for bank in banks[:-1])] and banks[-1].end == 160
    groups = [(bank.end - bank.begin) / GROUP_SIZE for bank in banks]
    assert groups == [3, 3, *[2] * 7]


def test_padding_does_not_change_responses():
    convolution = KernelConvolution(SERIES, 2, 64, seed=0, gain=1.0)
    x = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(0))
    alone, _ = convolution(x, torch.tensor([30]))
    padded, count = convolution(torch.nn.functional.pad(x, (0, 0, 0, 9), value=torch.inf), torch.tensor([30]))
    torch.testing.assert_close(padded[:, : int(count)], alone)


def test_kernels_sustain_exactly_zero_over_constant_values():
    inside = Windows(patch=9)
    rows = torch.tensor([-3.0, -0.3, 0.7, 5.0])[:, None, None].expand(4, 40, 1)
    responses, counts = KernelConvolution(inside, 1, 64, seed=0, gain=6.0)(rows, torch.full((4,), 40))
    assert responses.abs().max() > 0  # the taps sum to zero but for rounding
    states = HiddenStates(responses, counts, max_tokens=40)
    assert not find_pooling("sustained3").of(states).any()


def test_the_family_has_one_layer_and_no_blocks():
    family, shape = find_shape("kernels:width=64")
    backbone = load_backbone("kernels:width=64")
    assert (shape.depth, shape.width, shape.max_tokens) == (0, 64, None) and layer_names(0) == ("embed",)
    assert backbone.layers == ("embed",) and not list(backbone.parameters()) and family.name == "kernels"
    for name, message in (
        ("kernels:width=12", "multiple of 8"),
        ("kernels:width=0", "multiple of 8"),
        ("kernels:n_layer=2", "NAME is one of width"),
    ):
        with pytest.raises(InputError, match=message):
            find(name)
    with pytest.raises(InputError, match="no blocks"):
        find("kernels", depth=1)
    with pytest.raises(InputError, match="--backbone, such as mini"):
        next(backbone.run_layers(torch.zeros(1, 3, 64), layers=["block01"]))


def test_kernels_have_no_tokenizer():
    task = Task(name="mine.npz", form=Vectors(2), max_tokens=40, classes=2)
    settings = Reservoir(backbone="kernels:width=64", init="random", input="kernels", patch=9, gain=6.0)
    with pytest.raises(InputError, match="no tokenizer of its own"):
        _ = load_model(task, settings, "cpu").tokenizer


@pytest.mark.parametrize("form", [Vectors(2), Tokens(4)], ids=["values", "symbols"])
def test_pooled_features_are_statistics_of_the_responses(form):
    task = Task(name="mine.npz", form=form, max_tokens=40, classes=2)
    symbols = isinstance(form, Tokens)
    normalise = "channel" if symbols else "differences"
    settings = Reservoir(
        backbone="kernels:width=64", init="random", input="kernels", gain=6.0,
        patch=9, stride=1, dilations="1,2", pad="same", normalise=normalise, seed=4,
    )  # fmt: skip
    model = load_model(task, settings, "cpu")
    assert model.compute == "float32"
    draw, lengths = np.random.default_rng(0), np.array([40, 25, 33])
    x = draw.integers(0, 4, (3, 40)) if symbols else draw.standard_normal((3, 40, 2)).astype(np.float32)
    names = ("embed/max", "embed/mean", "embed/shares7", "embed/quantiles3")
    pooled = forward(model, None, x, lengths, names, batch_rows=2)
    windows = settings.windows(task)
    convolution = KernelConvolution(windows, 4 if symbols else 2, 64, seed=4, gain=6.0)
    for row, length in enumerate(lengths):
        values = torch.from_numpy(x[row : row + 1, :length])
        responses = convolution(values.repeat(2, *[1] * (x.ndim - 1)), torch.tensor([length] * 2))[0][0].numpy()
        expected = {
            "embed/max": responses.max(axis=0),
            "embed/mean": responses.mean(axis=0),
            "embed/shares7": np.concatenate([(responses > level).mean(axis=0) for level in share_levels(7)]),
            "embed/quantiles3": np.concatenate([np.quantile(responses, q, axis=0) for q in (0.25, 0.5, 0.75)]),
        }
        for name in names:
            np.testing.assert_allclose(pooled[name][row, 0], expected[name], rtol=1e-4, atol=1e-4)
            assert Column.parse(name).layer == "embed"


def test_kernels_of_subsets_read_some_channels():
    def taps(channels, **options):
        return KernelConvolution(SERIES, channels, 512, seed=0, gain=2.0, **options).taps.numpy()

    some, every = taps(20, channel_subsets=True), taps(20)
    is_read = some.any(axis=2)
    numbers = is_read.sum(axis=1)
    assert set(numbers) == set(range(1, 10)) and np.bincount(numbers).argmax() == 1
    assert is_read.sum(axis=0).min() > 0.5 * is_read.sum() / 20  # all channels alike
    np.testing.assert_allclose(np.linalg.norm(some, axis=(1, 2)), 2, rtol=1e-5)
    # The weights of the channels that a kernel reads have the ratios that they have in a kernel of all channels.
    kernel, channels = np.flatnonzero(numbers > 1)[0], is_read[np.flatnonzero(numbers > 1)[0]]
    ratio = some[kernel, channels] / every[kernel, channels]
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
    np.testing.assert_array_equal(taps(1, channel_subsets=True), taps(1))


def test_seeds_draw_other_kernels():
    first, again, other = (KernelConvolution(SERIES, 1, 64, seed=seed, gain=1.0).taps for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.isclose(first, other).any()


# Series by default: every stage works with random kernels alone, and a fit of mini shows what its block adds.


ROWS, LONGEST = 60, 40


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Return a file of series of two channels and several lengths, one per row, of two frequencies."""
    draw = np.random.default_rng(0)
    y, lengths = np.arange(ROWS) % 2, draw.integers(25, LONGEST + 1, ROWS)
    lengths[0] = LONGEST
    phase = draw.uniform(0, 6, (ROWS, 1)) + np.arange(LONGEST) * (0.5 + 0.4 * y[:, None])
    x = np.stack([np.sin(phase), np.cos(phase)], axis=2) + draw.normal(0, 0.2, (ROWS, LONGEST, 2))
    file = tmp_path_factory.mktemp("series") / "series.npz"
    np.savez(file, x=x.astype(np.float32), y=np.array(["slow", "fast"])[y], lengths=lengths)
    return file


@pytest.fixture(scope="module")
def features(series, tmp_path_factory):
    return extract(str(series), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def fitted(features):
    return fit(features)


def test_the_entry_records_the_family_its_settings_and_the_seed(series, features, tmp_path):
    spec = features.store.entry.spec
    assert (spec.backbone.family, spec.init.kind, spec.input.kind) == ("kernels", "random", "kernels")
    assert spec.compute == "float32" and features.store.entry.path.name.startswith("kernels-")
    others = [
        extract(str(series), cache=tmp_path, limit=8, layers="embed", pool="max", backbone=backbone, seed=seed)
        for backbone, seed in (("kernels", 0), ("kernels", 1), ("kernels:width=64", 0), ("kernels:width=72", 0))
    ]
    assert len({other.store.entry.key for other in others}) == 4


def test_a_readout_predicts_explains_and_tells_no_transformer(series, fitted, capsys, tmp_path):
    assert fitted.best.test_score > 0.8 and fitted.layer_scores == ()
    rows = list(predict(fitted.saved, series))
    assert np.mean([row.label == row.truth for row in rows]) > 0.8
    assert explain(fitted.saved, series, out=tmp_path / "why.png").plot.is_file()
    assert "transformer" not in capsys.readouterr().err


def test_rows_without_a_window_are_not_explained(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 16)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0).astype(int))
    np.savez(tmp_path / "short.npz", x=x[:2], lengths=np.array([8, 2]))
    windows = {"input": "gaussian", "patch": 4, "stride": 2, "pad": "valid", "init": "random"}
    features = extract(
        tmp_path / "rows.npz",
        backbone="mini:n_layer=1,n_embd=32",
        layers="embed",
        pool="mean",
        cache=tmp_path,
        **windows,
    )
    saved = fit(features, columns="embed/mean", alphas="1:1:1", select="valid").saved
    with pytest.raises(InputError, match=r"short.npz, row 1: 2 tokens, but explain reads at least 4"):
        explain(saved, tmp_path / "short.npz", out=tmp_path / "why.png")


def test_the_module_equals_predict(series, fitted):
    with np.load(series) as arrays, torch.no_grad():
        x, lengths = arrays["x"], arrays["lengths"]
        logits = build(Bundle.load(fitted.saved), fitted.saved)(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_allclose(read(logits.numpy(), fitted.saved), expected(fitted.saved, series), atol=1e-4)


@can_export
def test_the_program_equals_predict_for_rows_of_any_length(series, fitted, tmp_path):
    done = export(fitted.saved, out=tmp_path / "m.pt2")
    assert done.tokens[1] == LONGEST
    run = torch.export.load(done.model).module()
    with np.load(series) as arrays:
        x, lengths = arrays["x"], arrays["lengths"]
    logits = run(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_allclose(read(logits.numpy(), fitted.saved), expected(fitted.saved, series), atol=1e-4)


def test_workers_and_seeds_work_as_for_other_families(series, features, tmp_path):
    shared = extract(str(series), cache=tmp_path / "shared", workers=2)
    shards = [
        {name: data for name, data in contents(store.entry.path).items() if name.endswith(".h5")}
        for store in (features.store, shared.store)
    ]
    assert shards[0] and shards[0].keys() == shards[1].keys()
    other = extract(str(series), cache=tmp_path / "other", seed=1)
    columns = "+".join(f"{number}:{features.columns[0]}" for number in (1, 2))
    assert fit([features, other], columns=columns).best.test_score > 0.8


def test_a_classifier_has_the_same_default(series):
    with np.load(series) as arrays:
        rows = [x[:length] for x, length in zip(arrays["x"], arrays["lengths"], strict=True)]
        y = arrays["y"]
    model = ReservoirClassifier().fit(rows[:40], y[:40])
    assert model.score(rows[40:], y[40:]) > 0.8


def test_a_transformer_is_one_flag_away_and_its_block_is_compared_with_the_kernels(series, tmp_path):
    result = fit(extract(str(series), cache=tmp_path, backbone="mini", compute="float32"))
    assert [score.layer for score in result.layer_scores] == ["embed", "block01"]
    assert sum(score.difference_interval is not None for score in result.layer_scores) == 1


def test_training_needs_blocks(series, tmp_path):
    with pytest.raises(InputError, match="it has no blocks"):
        train(str(series), cache=tmp_path, backbone="kernels", steps=1)


# Symbols with their level in brackets, and their counts by the first symbol: structure that is given, not learned.


SMALL = {"train_rows": 300, "valid_rows": 60, "test_rows": 60, "min_length": 8, "max_length": 30}


def levels_by_hand(symbols):
    """Return the level of each symbol of an expression."""
    depth, levels = 0, []
    for symbol in symbols:
        depth += symbol.startswith(("[", "(", "{"))
        levels.append(min(max(depth, 1), BRACKET_LEVELS))
        depth -= symbol.endswith(("]", ")", "}"))
    return levels


def test_each_symbol_of_an_expression_stands_at_its_level():
    words = ["[MAX", "4", "[MIN", "2", "[SM", "1", "[MED", "3", "[MAX", "9", "0", "]", "]", "5", "]", "]", "7", "]"]
    brackets = Brackets.of(task_named("listops").task)
    tokens = torch.tensor([[SYMBOLS.index(word) for word in words]])
    hidden = BracketCounter(brackets, 72, gain=2.0)(tokens)[0]
    assert hidden.shape == (len(words), 72) and torch.equal(hidden.sum(dim=1), torch.full((len(words),), 2.0))
    level, symbol = np.divmod(hidden.argmax(dim=1).numpy(), len(SYMBOLS))
    assert symbol.tolist() == tokens[0].tolist() and (level + 1).tolist() == levels_by_hand(words)


def test_brackets_of_own_texts_come_in_pairs_and_other_symbols_are_refused():
    text = Task(name="mine.csv", form=Tokens(8), max_tokens=20, classes=2, alphabet="ab()<[]>")
    assert Brackets.of(text) == Brackets(8, (2, 5, 4), (3, 6, 7))
    values = torch.tensor([[0, 2, 0, 3, 3, 1]])  # a(a))b: the sum never counts below the first level
    level = BracketCounter(Brackets.of(text), 32, gain=1.0)(values)[0].argmax(dim=1) // 8
    assert level.tolist() == [0] * 6
    for form, alphabet in ((Tokens(3), "a(b"), (Tokens(2), ""), (Vectors(2), "")):
        with pytest.raises(InputError, match="no pairs of brackets"):
            Brackets.of(Task(name="mine.csv", form=form, max_tokens=20, classes=2, alphabet=alphabet))
    with pytest.raises(InputError, match="kernels:width=32"):
        BracketCounter(Brackets.of(text), 24, gain=1.0)


def test_counts_are_sums_and_maxima_alone_and_for_each_first_symbol():
    symbols, lengths = np.array([[1, 0, 2, 2], [0, 2, 0, 0]]), torch.tensor([4, 2])
    hidden = torch.from_numpy(np.eye(3, dtype=np.float32)[symbols])
    hidden[1, 2:] = float("nan")  # padding
    pooled = find_pooling("counts2").of(HiddenStates(hidden, lengths))[:, 0].reshape(2, 3, 6)
    assert find_pooling("counts2").shape(3, 4, 1) == (1, 18)
    counts = [[1, 1, 2, 1, 1, 1], [1, 0, 1, 1, 0, 1]]
    assert pooled[:, 0].tolist() == counts
    assert pooled[:, 1].tolist() == [[0] * 6, counts[1]] and pooled[:, 2].tolist() == [counts[0], [0] * 6]
    with pytest.raises(InputError, match="the layer has 3 channels"):
        find_pooling("counts4").shape(3, 4, 1)


def test_listops_is_read_by_the_counter_and_predicted_from_a_saved_readout(tmp_path):
    features = extract("listops", input="counter", pool="counts16", parameters=SMALL, cache=tmp_path)
    spec = features.store.entry.spec
    assert (spec.input.kind, spec.backbone.family, spec.input.gain) == ("counter", "kernels", 1.0)
    with pytest.raises(InputError, match="it reads symbols, not windows"):
        extract("listops", input="counter", patch=3, pool="counts16", parameters=SMALL, cache=tmp_path)
    fitted = fit(features, select="valid")
    file = tmp_path / "new.npz"
    x = np.array([[SYMBOLS.index(word) for word in ["[MAX", "2", "[MIN", "9", "8", "]", "3", "]"]]])
    np.savez(file, x=x, lengths=[x.shape[1]])
    (row,) = predict(fitted.saved, file)
    assert row.label in range(10)
