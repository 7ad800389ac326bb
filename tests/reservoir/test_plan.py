"""Options and the plan: which options are refused, and the defaults of each kind of data with their reasons."""

import itertools
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from reservoir import InputError, machine, options
from reservoir.column import ROLLING, Column, joined_name, names_of
from reservoir.devices import choose_compute
from reservoir.option_fields import KINDS, Options, as_group
from reservoir.options import ExtractOptions, FitOptions, ReservoirOptions, TaskOptions, TrainOptions
from reservoir.plan.basis import kind_of
from reservoir.plan.candidates import default_columns, default_folds, readout_candidates
from reservoir.plan.columns import FEWER_KERNEL_POOLINGS, KERNEL_POOLINGS, VALUE_POOLINGS
from reservoir.plan.model import resolve_model
from reservoir.plan.resolved import resolve
from reservoir.pooling import check_poolings
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Tokens, Vectors
from tests.helpers import outcome

SERIES = Task(name="mine.npz", form=Vectors(2), max_tokens=500, classes=3)
SYMBOLS = Task(name="letters.csv", form=Tokens(4), max_tokens=60, classes=3)
STEPS = replace(SERIES, parameters={"each": "token"}, readout_tokens=500)
TEXTS = Task(name="letters.csv", form=Tokens(65), max_tokens=60, classes=3)
PICTURES = Task(name="photos", form=Vectors(48), max_tokens=64, classes=3, pictures=32)


def plan_of(task, rows=200, longest=None, **given):
    return resolve(task, ExtractOptions(**given), {"train": rows}, longest)


def test_other_data_than_series_and_symbols_keep_their_tokens():
    assert resolve_model(ReservoirOptions()) == Reservoir()
    for task, kind in (
        (replace(SYMBOLS, form=Tokens(65)), "tokens"),
        (replace(SYMBOLS, max_tokens=4), "tokens"),
        (replace(SERIES, name="digits"), "named task"),
        (replace(SERIES, readout_tokens=2), "vectors"),
        (replace(SERIES, max_tokens=8), "vectors"),
    ):
        plan = plan_of(task)
        assert kind_of(task) == kind
        assert plan.reservoir == Reservoir() and plan.reservoir.plain and plan.store == "float16"
        assert "raw" not in plan.candidates


def test_layers_and_poolings_follow_the_kind_of_data():
    many = replace(SYMBOLS, form=Tokens(300))
    plan = plan_of(many)
    assert plan.poolings == ("last", "mean", "segments8", "tokens")
    assert plan.layers == ("embed", "block01", "block02")
    assert plan_of(many, backbone="gpt2-medium", init="random").poolings == ("last", "mean", "segments8")
    named = plan_of(replace(SERIES, name="digits"))
    assert named.poolings == ("last", "mean") and named.layers[-1] == "final" and len(named.layers) == 8


def test_series_and_symbols_get_kernels_and_known_candidates():
    series, symbols = plan_of(SERIES), plan_of(SYMBOLS)
    found = series.reservoir
    assert (found.input, found.gain, found.patch, found.stride) == ("kernels", 6.0, 9, 1)
    assert series.reservoir.dilations == "1,2,4,8,16,32" and series.store == "float32"
    found = symbols.reservoir
    assert (found.input, found.patch, found.stride, found.pad) == ("kernels", 5, 1, "same")
    for plan in (series, symbols):
        check_poolings(list(plan.poolings))
        assert set(itertools.chain.from_iterable(plan.candidates)) == {*plan.columns}
        assert default_columns(plan.candidates) == plan.candidates[0]
    assert series.poolings == KERNEL_POOLINGS and series.reservoir.normalise == "both"
    assert series.candidates == (series.columns[:3], series.columns)
    with_blocks = plan_of(SERIES, backbone="mini")
    assert set(VALUE_POOLINGS) < set(with_blocks.poolings) and with_blocks.reservoir.normalise == "differences"


def test_pictures_of_users_are_read_by_patches_without_a_transformer_unless_one_is_named():
    plan = plan_of(PICTURES)
    assert (plan.reservoir.backbone, plan.reservoir.input, plan.has_blocks) == ("kernels", "patches", False)
    excess, mirrored = (Column("embed", name) for name in ("excess2", "mirrored3"))
    assert plan.candidates == ((excess, mirrored), (excess,), (mirrored,))
    assert "patches of training rows" in plan.model_note("float32")
    # With more rows there are fewer patches, so that a readout does not take hours.
    many = plan_of(PICTURES, 20_000)
    assert many.reservoir.backbone == "kernels:width=512" and many.candidates == ((excess,), (mirrored,))
    assert plan_of(PICTURES, 200_000).reservoir.backbone == "kernels:width=256"
    with_blocks = plan_of(PICTURES, backbone="mini")
    assert with_blocks.reservoir.input == "orthogonal" and with_blocks.poolings == ("last", "mean", "segments8")


def test_series_get_random_kernels_without_blocks_unless_an_option_needs_some():
    plan = plan_of(SERIES)
    assert (plan.reservoir.backbone, plan.reservoir.init) == ("kernels:channel_subsets=true", "random")
    assert plan_of(replace(SERIES, form=Vectors(1))).reservoir.backbone == "kernels"
    assert plan.layers == ("embed",)
    assert not plan.has_blocks and plan.compute == "float32" and "add little" in plan.reasons["backbone"]
    assert "no transformer; --backbone mini adds one" in plan.model_note("float32")
    for given in (
        {"init": "random"},
        {"depth": 2},
        {"input": "orthogonal"},
        {"layers": "embed,block01"},
        {"layers": "all"},
        {"backbone": "mini"},
    ):
        assert plan_of(SERIES, **given).reservoir.backbone == "mini" and plan_of(SERIES, **given).has_blocks
    for given in ({"layers": "embed"}, {"input": "kernels"}, {"seed": 1}):
        assert plan_of(SERIES, **given).reservoir.backbone == "kernels:channel_subsets=true"
    assert plan_of(SERIES, backbone="kernels").reasons["backbone"] == "given"
    assert {plan_of(task).reservoir.backbone for task in (SYMBOLS, replace(SERIES, name="digits"))} == {"mini"}


@pytest.mark.parametrize("values", [15, 32, 500])
def test_many_rows_have_fewer_kernels_then_fewer_columns(values):
    task = replace(SERIES, form=Vectors(1), max_tokens=values)
    plans = [plan_of(task, rows) for rows in (10, 6144, 6145, 24_577, 50_000, 10**5, 10**6)]
    backbones = ["kernels"] * 2 + ["kernels:width=512"] + ["kernels:width=256"] * 4
    assert [plan.reservoir.backbone for plan in plans] == backbones
    assert all(plan.layers == ("embed",) and plan.reservoir.stride == 1 for plan in plans)
    assert all(plan.reasons["layers"] == "the backbone has no blocks" for plan in plans)
    widths = [sum(tokens * width for tokens, width in plan.shapes.values()) for plan in plans]
    sizes = [width * (4 if plan.store == "float32" else 2) for plan, width in zip(plans, widths, strict=True)]
    assert sizes == sorted(sizes, reverse=True)
    assert widths[:4] == [1024 * 12, 1024 * 12, 512 * 12, 256 * 12]
    # All columns stand side by side, however many rows there are.
    assert all({*plan.columns} == {*plan.candidates[-1]} for plan in plans)
    assert all(default_columns(plan.candidates) == plan.candidates[0] for plan in plans)
    assert plans[-1].poolings == FEWER_KERNEL_POOLINGS[0 if values == 500 else -1]
    # Rows that only have test labels take room on disk too.
    of_test = resolve(task, ExtractOptions(), {"train": 500, "test": 35_000})
    assert of_test.reservoir.backbone == "kernels:width=512"


@pytest.mark.parametrize("task", [SERIES, SYMBOLS], ids=kind_of)
def test_a_limited_run_has_the_plan_of_its_own_rows(task):
    rows = {"train": 1_000_000, "valid": 50_000, "test": 300}
    limited = resolve(task, ExtractOptions(limit=500), rows)
    assert limited == resolve(task, ExtractOptions(), {"train": 500, "valid": 500, "test": 300})
    whole = resolve(task, ExtractOptions(), rows)
    assert (limited.poolings, limited.reservoir) != (whole.poolings, whole.reservoir)


@pytest.mark.parametrize("task", [replace(SERIES, form=Vectors(1), max_tokens=32), SERIES, SYMBOLS], ids=str)
def test_many_rows_cost_columns_and_layers_but_no_values(task):
    numbers = (10, 3000, 10_000, 50_000, 10**5, 10**6)
    few, *_ = plans = [plan_of(task, rows, backbone="mini") for rows in numbers]
    assert all(plan.reservoir == few.reservoir and plan.reservoir.stride == 1 for plan in plans)
    assert all(plan.reasons["stride"] == few.reasons["stride"] for plan in plans)
    assert all(plan.reservoir.windowed(task).max_tokens == task.max_tokens for plan in plans)
    widths = [sum(tokens * width for tokens, width in plan.shapes.values()) for plan in plans]
    assert all(plan.layers == ("embed",) for plan in plans[4:]) and plans[-1].poolings[:2] == ("std", "max")
    assert widths == sorted(widths, reverse=True)
    windows = 10**6 * task.max_tokens
    assert plans[-1].reasons["layers"] == f"{windows:,} windows; blocks read at most 2,097,152 by default"
    assert plans[-1].reasons["pool"].startswith(f"{windows:,} windows; at most 16,777,216 are sorted by default; all")


def test_the_input_layer_alone_has_the_known_candidates():
    long = replace(SERIES, max_tokens=1024)
    plan = plan_of(long, 2900, backbone="mini")
    assert plan.layers == ("embed",) and set(VALUE_POOLINGS) < set(plan.poolings)
    assert plan.candidates[0] == tuple(Column("embed", name) for name in VALUE_POOLINGS)
    assert set(itertools.chain.from_iterable(plan.candidates)) == {*plan.columns}


def test_default_layers_of_many_rows_are_fewer_under_given_poolings():
    plan = plan_of(SERIES, 100_000, pool="mean", backbone="mini")
    assert names_of(plan.columns) == ("embed/mean",) and plan.reasons["pool"] == "given"
    assert "windows" in plan.reasons["layers"]
    assert plan_of(SERIES, 100_000, pool="mean", layers="block01").columns == (Column("block01", "mean"),)
    assert plan_of(SERIES, 100_000, layers="block01").layers == ("block01",)


@pytest.mark.parametrize(
    "task",
    [
        SERIES,
        SYMBOLS,
        replace(SYMBOLS, form=Tokens(300)),
        replace(SERIES, max_tokens=8),
        PICTURES,
        STEPS,
    ],
    ids=kind_of,
)
@pytest.mark.parametrize("rows", [600, 1500, 2900, 4000, 20_000, 200_000])
def test_default_columns_of_every_kind_fit_their_limit_or_the_input(task, rows):
    plan, all_columns = plan_of(task, rows), plan_of(task, 10)
    values = task.max_tokens * (task.form.dim if isinstance(task.form, Vectors) else 1)
    size = rows * sum(t * w for t, w in plan.shapes.values()) * (4 if plan.store == "float32" else 2)
    fewest = ("embed/all",), ("embed/around4",), ("embed/std", "embed/max")
    limit = 1e9 if plan.reservoir.backbone.startswith("kernels") and not task.labels_each_token else 2e8
    assert size <= max(limit, 16 * rows * values) or names_of(plan.columns) in fewest
    assert bool(plan.note_on_fewer_columns) == (plan.columns != all_columns.columns)
    more = f"--layers {','.join(all_columns.layers)} --pool {','.join(all_columns.poolings)} takes"
    assert not plan.note_on_fewer_columns or (more in plan.note and "GB" in plan.note)
    for option, name in (("layers", "layers"), ("pool", "poolings")):  # what the budget changed, its reason says
        reason, changed = plan.reasons[option], getattr(plan, name) != getattr(all_columns, name)
        assert (f"{limit / 1e6:,.0f} MB" in reason or "windows" in reason) == changed
    if rows <= 3000:
        assert {*plan.columns} <= set(itertools.chain.from_iterable(plan.candidates))
    assert not plan_of(task, rows, pool=",".join(plan.poolings), layers=",".join(plan.layers)).note_on_fewer_columns


def test_a_label_for_every_step_is_read_from_windows_around_the_step_beside_rolling_statistics():
    plan = plan_of(STEPS, 60)
    assert plan.reservoir.backbone == "kernels:width=64" and plan.reservoir.dilations == "1,2,4,8,16"
    around, at_step = Column("embed", "around4"), Column("embed", "all")
    assert plan.shapes == {at_step: (500, 64), around: (500, 256)}
    assert plan.candidates == ((around, ROLLING), (at_step, around, ROLLING))
    assert plan_of(STEPS, 20_000).candidates == ((around, ROLLING),)
    short = plan_of(replace(STEPS, max_tokens=30, readout_tokens=30), 60)
    assert short.poolings == ("all", "around2") and short.reservoir.dilations == "1,2"


def test_symbols_and_given_transformers_keep_the_state_of_each_token_as_its_features():
    letters = replace(STEPS, form=Tokens(4))
    for plan in (plan_of(letters, 60), plan_of(STEPS, 60, backbone="mini"), plan_of(STEPS, 60, layers="block01")):
        assert plan.poolings == ("all",) and plan.reservoir.backbone == "mini"
        assert ROLLING not in itertools.chain.from_iterable(plan.candidates)


def test_letters_keep_all_tokens_of_a_layer_before_all_layers():
    letters = {rows: plan_of(SYMBOLS, rows) for rows in (600, 2000, 2900, 4000)}
    assert [plan.layers for plan in letters.values()] == [
        ("embed", "block01"),
        *[("block01",)] * 2,
        ("embed", "block01"),
    ]
    assert ["tokens" in plan.poolings for plan in letters.values()] == [True, True, True, False]
    assert [len(plan.candidates) for plan in letters.values()] == [4, 3, 3, 8]
    assert letters[4000].poolings == ("shares13", "max", "min", "segments8")
    given = plan_of(SYMBOLS, 2000, layers="embed,block01")
    for layers in ("block02", "embed,block02"):  # all columns of explicitly named layers are tried
        plan = plan_of(SYMBOLS, 600, layers=layers)
        assert {(column,) for column in plan.columns} <= {*plan.candidates}
    assert given.layers == ("embed", "block01") and given.poolings[0] == "mean" and given.reasons["layers"] == "given"


def test_readouts_of_thousands_of_labels_are_not_tried_unasked():
    last, mean = Column("a", "last"), Column("a", "mean")
    candidates = [
        readout_candidates(
            replace(SERIES, name="digits", readout_tokens=2, outputs=number),
            "named task",
            [last, mean],
            {mean: 64},
            500,
            cross_validated=True,
        )
        for number in (2, 2000)
    ]
    assert candidates == [((last,), (mean,)), ((last,),)]


def test_each_value_of_a_plan_has_a_reason():
    plan = plan_of(SERIES, gain=2.0, layers="embed", compute="float32")
    table = {option: (value, why) for option, value, why in plan.table()}
    assert table["gain"] == ("2.0", "given") and table["layers"] == ("embed", "given")
    assert table["compute"] == ("float32", "given") and table["patch"] == (
        "9",
        "the best in our measurements for series",
    )
    assert all(why for _, why in table.values())
    reservoir = as_group(ExtractOptions(), ReservoirOptions).to_dict()
    assert reservoir.keys() | {"layers", "pool", "store", "compute", "device", "batch_rows"} <= table.keys()
    assert plan.to_dict()["columns"]["value"] == [*map(joined_name, plan.candidates)]


@pytest.mark.parametrize("backbone", ["mini", None])
@pytest.mark.parametrize(("values", "stride"), [(9, 1), (1024, 1), (1025, 2), (5000, 5)])
def test_only_long_rows_have_a_stride_and_its_reason(backbone, values, stride):
    task = replace(SERIES, max_tokens=values)
    plan = plan_of(task, backbone=backbone)
    assert plan.reservoir.stride == stride and plan.reservoir.windowed(task).max_tokens <= 1024
    reason = (
        "the best in our measurements for series"
        if stride == 1
        else f"rows of up to {values:,} values become at most 1,024 windows"
    )
    assert plan.reasons["stride"] == reason and plan.reasons["patch"] == "the best in our measurements for series"


def test_windows_are_learned_from_training_rows():
    plan = plan_of(replace(SERIES, max_tokens=900), longest=500)
    assert plan.reservoir == plan_of(SERIES).reservoir
    long = plan_of(replace(SERIES, max_tokens=5000), longest=500, backbone="mini")
    assert long.reservoir.stride == 5  # the model has 1,024 positions


def test_an_option_of_the_windows_replaces_only_its_own_default():
    default = plan_of(SERIES).reservoir
    assert plan_of(SERIES, stride=2).reservoir == replace(default, stride=2)
    assert plan_of(SERIES, patch=4).reservoir == replace(
        default, patch=4, dilations=plan_of(SERIES, patch=4).reservoir.dilations
    )
    assert plan_of(SERIES, input="orthogonal", patch=4).reservoir == Reservoir(patch=4, stride=4)  # plain windows
    assert plan_of(SERIES, gain=2.0).reservoir == replace(default, gain=2.0)
    assert plan_of(SERIES, seed=3).reservoir == replace(default, seed=3)
    for fault in ({"dilations": "1,x"}, {"dilations": "0"}, {"pad": "none"}, {"normalise": "all"}, {"input": "other"}):
        with pytest.raises(InputError, match=f"--{next(iter(fault))}"):
            ReservoirOptions(**fault)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": "block99"}, "layer 'block99'"),
        ({"pool": "median"}, "pooling 'median'"),
        ({"pool": "cls"}, "--pool cls"),
        ({"pool": ","}, "no columns"),
        ({"depth": 7}, "has 6 blocks"),
        ({"limit": 0}, "--limit 0"),
        ({"gain": 0.0}, "--gain"),
        ({"compute": "float64"}, "float64"),
        ({"batch_rows": 0}, "--batch-rows"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_model_is_loaded(given, message, monkeypatch):
    monkeypatch.setattr("reservoir.loaded_model.load_model", None)
    with pytest.raises(InputError, match=message):
        plan_of(SERIES, **given)


@pytest.mark.usefixtures("shipped_defaults")
def test_few_validation_rows_are_replaced_by_folds():
    assert default_folds(100, 999) == (5, 5) and default_folds(1000, 999) == (5, 1)
    assert default_folds(1001, 999) == (3, 1) and default_folds(100, 1000) == (0, 1)


def test_blocks_are_compiled_on_a_gpu_on_request(monkeypatch):
    def compiled(**given):
        return plan_of(TEXTS, backbone="gpt2", init="random", input="orthogonal", **given).compiled

    assert not compiled()
    assert "on GPUs only" in outcome(compiled, compile_blocks=True)
    monkeypatch.setattr("reservoir.devices.on_gpu", lambda device: True)
    assert "cannot be compiled" in outcome(plan_of, SERIES, compile_blocks=True)
    assert compiled(compile_blocks=True) and not compiled()


@pytest.mark.parametrize(("tokens", "patch"), [(9, 9), (17, 9), (500, 9), (500, 2), (7, 1)])
def test_dilations_grow_up_to_the_length(tokens, patch):
    resolved = Reservoir(patch=patch, dilations="auto").with_dilations(tokens)
    found = tuple(map(int, resolved.dilations.split(",")))
    assert found == tuple(2**i for i in range(len(found)))
    assert all((patch - 1) * d < tokens for d in found[1:])
    assert patch == 1 or (patch - 1) * 2 * found[-1] >= tokens


@pytest.mark.parametrize("seed", [-1, 2**63, 10**26])
def test_seeds_that_torchs_generators_do_not_take_are_refused(seed):
    with pytest.raises(InputError, match=rf"--seed {seed}: give a whole number from 0 to 9223372036854775807$"):
        ReservoirOptions(seed=seed)
    assert ReservoirOptions(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (FitOptions, {"alphas": [1, 10]}, "--alphas [1, 10]: give a string. Penalties to try, LO:HI:N"),
        (FitOptions, {"select": 5}, "--select 5: give a string. Choose readouts by valid"),
        (FitOptions, {"columns": ("final/mean", 3)}, "--columns ('final/mean', 3): give a string or a list of strings"),
        (TrainOptions, {"from_cache": "yes"}, "--from-cache 'yes': give True or False"),
        (ExtractOptions, {"layers": 1}, "--layers 1: give a string or a list of strings. Layers"),
        (ExtractOptions, {"limit": "60"}, "--limit '60': give a whole number. Maximum rows per split"),
        (ExtractOptions, {"cache": 3}, "--cache 3: give a path. Root folder of the cache."),
        (ExtractOptions, {"backbone": np.zeros((500, 3))}, "--backbone array("),
        (ExtractOptions, {"backbone": np.zeros((2, 1))}, "--backbone array([[0.], [0.]]): give a string. Frozen model"),
        (TrainOptions, {"learning_rate": "fast"}, "--learning-rate 'fast': give a number."),
        (TaskOptions, {"parameters": ["rows", 3]}, "--param ['rows', 3]: give names with values."),
    ],
)
def test_options_of_a_wrong_type_are_refused_in_one_line(kind, wrong, words):
    message = outcome(kind, **wrong)
    assert message.startswith(words) and len(message) < 250


def test_numbers_of_numpy_and_paths_are_those_of_python():
    plain = {"seed": 3, "gain": 1.5, "limit": 60, "backbone": "folder", "parameters": {"rows": 3, "of": [0.5]}}
    other = {
        "seed": np.int32(3),
        "gain": np.float32(1.5),
        "limit": np.int64(60),
        "backbone": Path("folder"),
        "parameters": {"rows": np.uint8(3), "of": [np.float64(0.5)]},
    }
    assert ExtractOptions(**other) == ExtractOptions(**plain)
    assert json.dumps(ExtractOptions(**other).to_dict()) == json.dumps(ExtractOptions(**plain).to_dict())
    assert isinstance(ExtractOptions(cache=cast("Path", "here")).cache, Path)
    assert ExtractOptions(standardise=True).standardise is True


def test_every_option_has_a_type_that_is_checked():
    groups = [kind for kind in vars(options).values() if isinstance(kind, type) and issubclass(kind, Options)]
    types = {str(item.type) for kind in groups for item in fields(kind)}
    assert {part for each in types for part in each.split(" | ")} <= KINDS.keys()
    for kind in groups:
        kind()


AVX512 = "avx512f avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "limit", "precision"),
    [
        ("GenuineIntel", f"{AVX512} avx512_bf16 amx_tile amx_bf16", "", "bfloat16"),
        ("GenuineIntel", f"{AVX512} avx512_bf16 amx_tile amx_bf16", "avx512_core_amx", "bfloat16"),
        ("GenuineIntel", f"{AVX512} avx512_bf16 amx_tile amx_bf16", "AVX512_CORE_BF16", "float32"),
        ("GenuineIntel", f"{AVX512} avx512_bf16 amx_tile", "", "float32"),  # tiles without products of bfloat16
        ("GenuineIntel", f"{AVX512} avx512_bf16", "", "float32"),
        ("GenuineIntel", "avx512_bf16 amx_tile amx_bf16", "", "float32"),  # oneDNN needs AVX-512 for its tiles
        ("AuthenticAMD", f"{AVX512} avx512_bf16", "", "bfloat16"),
        ("AuthenticAMD", f"{AVX512} avx512_bf16", "AVX512_CORE_BF16", "bfloat16"),
        ("AuthenticAMD", f"{AVX512} avx512_bf16", "AVX2", "float32"),
        ("AuthenticAMD", "avx avx2 fma", "", "float32"),
    ],
)
def test_the_processor_decides_the_precision_without_a_trial(monkeypatch, tmp_path, vendor, flags, limit, precision):
    first = f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags} x\n\n"
    second = f"processor\t: 1\nflags\t\t: {AVX512} amx_tile amx_bf16\n"  # only the first processor is read
    (tmp_path / "cpuinfo").write_text(first + second)
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert {choose_compute("auto", torch.device("cpu")) for _ in range(20)} == {precision}
    assert choose_compute("float32", torch.device("cpu")) == "float32"


def test_arm_has_a_list_of_features_and_other_systems_have_none(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.faster_precision() == "float32"
    for features, precision in [("fp asimd bf16 i8mm", "bfloat16"), ("fp asimd", "float32")]:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {features}\nCPU part\t: 0xd40\n")
        assert machine.faster_precision() == precision


def test_without_a_driver_torch_has_no_gpu(monkeypatch):
    assert machine.may_have_gpu() or not torch.cuda.is_available()
    loads = Mock(return_value=None)
    monkeypatch.setattr("ctypes.CDLL", loads)
    assert machine.may_have_gpu()
    loads.side_effect = OSError("libcuda.so.1: cannot open shared object file")
    assert machine.may_have_gpu() == (sys.platform != "linux" or Path("/dev/kfd").exists())


def test_the_precision_and_a_driver_are_found_without_torch():
    code = "import sys, reservoir.machine as p; p.faster_precision(); p.may_have_gpu(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
