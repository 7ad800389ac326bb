"""The command line: one line for a mistake, JSON alone with --json, a fast start, progress, every task and family."""

import gzip
import io
import json
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from reservoir_cache import FeatureStore
from reservoir_pipelines import output, train
from reservoir_pipelines.output import meter, training_meter
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.options import ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.tasks.listops import evaluate, random_expressions
from reservoir.tasks.proteins import LETTERS, PARTS
from tests.reservoir.models import KINDS, save
from tests.tasks import samples

pytestmark = pytest.mark.usefixtures("cache")


def test_the_main_path_in_json(answer, tiny_gpt2, tmp_path):
    extracted = answer("extract", "digits", "--backbone", tiny_gpt2, "--limit", 200)
    assert set(extracted) >= {"entry", "rows", "columns", "bytes", "seconds", "reused"}
    assert extracted["rows"] == {"train": 200, "valid": 200, "test": 200}
    fitted = answer("fit", "digits")
    assert set(fitted["best"]) >= {"columns", "readout", "alpha", "valid_score", "test_score"}
    assert fitted["best"]["test_score"] == fitted["test_score"] > 0.5
    assert fitted.keys() >= {"metric", "valid_score", "evaluation"}  # as in the results of train
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 8, 8)))
    found = answer("predict", fitted["readout"], tmp_path / "new.npz")
    assert len(found["predictions"]["label"]) == 3 and found["evaluation"] is None
    assert set(found["predictions"]) == {"id", "label", *(f"p_{digit}" for digit in range(10))}
    assert answer("extract", "digits", "--backbone", tiny_gpt2, "--limit", 200)["reused"] is True


def test_settings_come_from_a_file_and_flags_win(answer, refusal, tiny_gpt2, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(f'[extract]\nbackbone = "{tiny_gpt2}"\nlimit = 60\npool = "mean"\nlayers = "final"\n')
    done = answer("extract", "digits", "--config", config, "--limit", 40)
    assert done["rows"]["train"] == 40 and done["columns"] == ["final/mean"]
    config.write_text("[extract]\nlimits = 60\n")
    assert "limits" in refusal("extract", "digits", "--config", config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fit]\ncolumns = 'all'\n[extarct]\nlimit = 40\n", "'extarct' is not a table"),
        ("layers = 'final'\n[extract]\nlimit = 40\n", "'layers' is not a table named after a command"),
        ("[cache]\nlimit = 40\n", "'cache' is not a table"),
        ("extract = 40\n", "below a line [extract]"),
    ],
)
def test_settings_that_no_command_reads_are_refused(refusal, tmp_path, text, words):
    config = tmp_path / "run.toml"
    config.write_text(text)
    err = refusal("extract", "digits", "--config", config)
    assert all(word in err for word in (str(config), words, "[extract]"))


def test_a_file_may_hold_the_settings_of_other_commands_only(answer, cache, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("[extract]\nlimit = 40\n[fit]\nseeds = 0\n[list]\n[train]\n")
    assert answer("cache", "list", "--config", config) == []
    assert answer("tasks", "--config", config)


def test_lists_in_a_file_stand_for_commas_or_for_a_repeated_option(answer, refusal, tiny_gpt2, tmp_path):
    config = tmp_path / "run.toml"
    few = 'param = ["train_rows=40", "valid_rows=30", "test_rows=20"]'
    config.write_text(f'[extract]\nlayers = ["embed", "final"]\npool = ["last", "mean"]\nlimit = 30\n{few}\n')
    done = answer("extract", "bit-xor", "--backbone", tiny_gpt2, "--config", config)
    assert done["columns"] == ["embed/last", "embed/mean", "final/last", "final/mean"]
    assert done["rows"] == {"train": 30, "valid": 30, "test": 20}
    config.write_text("[fit]\ncurve = [10, 20]\n")
    assert [point["rows"] for point in answer("fit", "bit-xor", "--config", config)["curve"]] == [10, 20]
    config.write_text("[extract]\nlimit = [1, 2]\n")
    refusal("extract", "bit-xor", "--config", config)


def wrong_inputs(tmp_path, tiny_gpt2, cut):
    """Commands that a user gets wrong, and what the one line about each must name."""
    file = cut / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-100]))
    bare = shutil.copytree(tiny_gpt2, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    return [
        (["extract", "mnist", "--data", tmp_path / "nowhere"], "nowhere"),
        (["extract", "mnist", "--data", bare], "train-images"),
        (["extract", "mnist", "--data", cut], "train-images-idx3-ubyte.gz"),
        (["extract", "digits", "--backbone", bare], "its weights cannot be loaded"),
        (["extract", "digits", "--backbone", "no-such-model"], "no-such-model"),
        (["extract", "digits", "--backbone", "gpt2:n_positions=8"], "8 positions"),
        (["extract", "digits", "--backbone", tiny_gpt2, "--layers", "block99"], "block99"),
        (["extract", "digits", "--backbone", tiny_gpt2, "--init", "magic"], "magic"),
        (["extract", "digits", "--backbone", tiny_gpt2, "--store", "int8"], "int8"),
        (["extract", "digits", "--workers", 2, "--scheduler", "tcp://127.0.0.1:9"], "pass one of them"),
        (["extract"], "task"),
        (["extract", ""], "extract: task is empty; give a name or a path"),
        (["extract", "digits", "--backbone", ""], "--backbone: it is empty"),
        (["extract", "digits", "--cache", ""], "'--cache': it is empty"),
        (["fit", ""], "the name of the entry is empty"),
        (["fit", "digits"], "reservoir extract digits"),
        (["predict", tmp_path, tiny_gpt2 / "config.json"], "neither a readout nor a run"),
        (["export", bare], "neither a readout nor a run"),
        (["cache", "show", "abcdef0"], "abcdef0"),
        (["nonsense"], "nonsense"),
    ]


def test_wrong_inputs_give_one_line_and_exit_code_2(refusal, tmp_path, tiny_gpt2, mnist_files, cache):
    for arguments, words in wrong_inputs(tmp_path, tiny_gpt2, mnist_files):
        assert words in refusal(*arguments)
    assert not list(cache.glob("features/*/*"))


def test_another_format_and_a_full_disk_are_refused_before_writing(answer, refusal, tiny_gpt2, cache, monkeypatch):
    from reservoir_cache import catalog

    tiny = ("extract", "digits", "--backbone", tiny_gpt2, "--limit", 50)
    with monkeypatch.context() as patch:
        patch.setattr(catalog.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))
        assert "free" in refusal(*tiny)
        assert not list(cache.glob("features/*/*"))
    spec = cache / answer(*tiny)["entry"] / "spec.json"
    spec.write_text(spec.read_text().replace('"format": 1', '"format": 99').replace('"format":1', '"format":99'))
    assert "99" in refusal("fit", spec.parent)


def test_the_short_help_and_the_version(call):
    from importlib.metadata import version

    for command in ([], ["extract"], ["cache"], ["cache", "list"]):
        code, out, _ = call(*command, "-h")
        assert (code, out) == call(*command, "--help")[:2] and code == 0
        assert "..." not in out.partition("Commands:")[2], "the description of every command fits on its line"
    assert call("--version")[:2] == (0, f"reservoir {version('reservoir-features')}\n")


def test_flags_of_extract_choose_among_the_entries_of_a_task(answer, refusal, tiny_gpt2):
    entries = {}
    for seed in (1, 0):
        flags = "--backbone", tiny_gpt2, "--seed", seed, "--limit", 50, "--layers", "final"
        entries[seed] = answer("extract", "digits", *flags)["entry"]
    fit = ("fit", "digits", "--columns", "final/mean")
    assert answer(*fit)["entry"] == entries[0], "the last one"
    assert answer(*fit, "--seed", 1)["entry"] == entries[1]
    assert answer(*fit, "--backbone", tiny_gpt2)["entry"] == entries[0]
    assert "gain 9" in refusal("fit", "digits", "--gain", 9)


def test_fit_takes_the_data_folder_that_extract_takes(answer, cache, mnist_files, tiny_gpt2):
    options = ["--data", mnist_files, "--backbone", tiny_gpt2]
    extracted = answer("extract", "mnist", "--layers", "final", "--pool", "mean", *options)
    assert answer("fit", "mnist", *options)["entry"] == extracted["entry"]
    assert answer("fit", "mnist", "--seeds", 1, *options)


def test_help_lists_the_flags_of_fit_in_sections(call):
    _, out, _ = call("fit", "--help")
    parts = ["\nArguments:", "\nData:", "\nModel:", "\nReadout:", "\nOutput:", "\nRun:", "\nOptions:"]
    places = [out.index(part) for part in parts]
    assert places == sorted(places)
    assert out.index("\nData:") < out.index("--label") < out.index("\nModel:") < out.index("--backbone")
    assert out.index("\nReadout:") < out.index("--alphas") < out.index("\nOutput:") < out.index("--out")


def test_help_of_train_and_pretrain_has_their_own_defaults(call):
    words = {item.name: item.metadata["shown"] for item in fields(vars(train)["arguments"])}
    resolved = resolve_model(ReservoirOptions())
    for name in ("backbone", "input", "patch", "dilations", "pad", "normalise"):
        assert words[name].partition(";")[0] == str(getattr(resolved, name))
    assert words["stride"].startswith("--patch;") and resolve_model(ReservoirOptions(patch=3)).stride == 3
    pictures = resolve_model(ReservoirOptions(input="patches"))
    assert (pictures.patch, pictures.stride) == (8, 1) and "8 with" in words["patch"] and "1 with" in words["stride"]
    defaults = [call(name, "--help")[1].count("[default: mini]") for name in ("train", "pretrain", "extract")]
    assert defaults == [1, 1, 0]


HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "pandas")
PROGRAM = """
import json, sys
from reservoir_pipelines.cli import run
commands, heavy = map(json.loads, sys.argv[1:])
codes = [run(arguments) for arguments in commands]
print(json.dumps([codes, [name for name in heavy if name in sys.modules]]), file=sys.stderr)
"""
MISTAKES = [
    (["extract", "digits", "--depht", "3"], "--depht"),
    (["extract", "digits", "--seed", "one"], "--seed"),
    (["fit", "digits", "--compute", "float32"], "--compute, which is for reservoir extract, plan, twin; see"),
    (["extract", "mnnist"], "did you mean 'mnist'"),
    (["train", "digits", "--backbone", "gtp2"], "did you mean 'gpt2'"),
    (["prepare", "missing.csv"], "missing.csv: no such file"),
    (["fit", "missing.csv"], "nothing extracted for 'missing.csv', and there is no task or file 'missing.csv'"),
    (["fit", "digit"], "give the path of your data, or a task; did you mean 'digits'"),
    (["predict", "no-readout", "missing.npz"], "no-readout: no such file or folder"),
]


def ask(*commands, heavy=HEAVY):
    """Run commands in a new process without heavy imports; return exit codes, stdout and lines of stderr."""
    program = [sys.executable, "-c", PROGRAM, json.dumps(commands), json.dumps(heavy)]
    done = subprocess.run(program, capture_output=True, text=True)
    *messages, found = done.stderr.splitlines()
    codes, imported = json.loads(found)
    assert imported == [], commands
    return codes, done.stdout, messages


def test_mistakes_end_in_one_line_before_anything_heavy_is_imported(cache):
    codes, out, messages = ask(*(arguments for arguments, _ in MISTAKES))
    assert (codes, out) == ([2] * len(MISTAKES), "")
    for line, (_, words) in zip(messages, MISTAKES, strict=True):
        assert words in line


def test_an_option_without_a_value_is_not_taken_for_that_of_another_command(refusal):
    assert refusal("extract", "digits", "--limit") == "reservoir: Option '--limit' requires an argument"


def test_version_and_help_import_nothing_heavy():
    assert ask(["--version"], ["extract", "--help"], heavy=(*HEAVY, "h5py", "numpy", "dask"))[0] == [0, 0]


def test_predict_imports_what_it_computes_with(cache, tmp_path):
    from reservoir_pipelines import extract, fit

    x = np.random.default_rng(0).normal(size=(40, 6))
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0] > 0).astype(int))
    np.savez(tmp_path / "new.npz", x=x)
    done = fit(extract(tmp_path / "d.npz", backbone="mini", layers="final").entry)
    slow = ("transformers", "sklearn", "pandas", "matplotlib", "dask", "torch._dynamo")
    codes, out, _ = ask(["predict", str(done.saved), str(tmp_path / "new.npz")], heavy=slow)
    assert (codes, len(out.splitlines())) == ([0], 40)


def test_extract_and_fit_of_series_import_what_they_compute_with(cache, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 30, 1))
    np.savez(tmp_path / "series.npz", x=x, y=(x[:, 0, 0] > 0).astype(int))
    slow = ("transformers", "sklearn", "pandas", "scipy.stats", "dask", "torch._dynamo", "huggingface_hub")
    commands = ["extract", str(tmp_path / "series.npz")], ["fit", str(tmp_path / "series.npz")]
    codes, _, messages = ask(commands[0], heavy=(*slow, "matplotlib"))
    assert codes == [0] and any("random kernels, no transformer" in line for line in messages)
    # Cached features and the raw input need no torch, whose import would take a third of the time of this fit.
    assert ask(commands[1], heavy=(*slow, "torch", "scipy.optimize"))[0] == [0]


def test_applying_a_readout_imports_nothing_that_only_fitting_needs():
    modules = "{'sklearn', 'scipy.optimize', 'torch'}"
    code = f"import sys; from reservoir.readouts import evaluation, logistic; print(sys.modules.keys() & {modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.fixture
def pass_time(monkeypatch):
    """Stop the clock; return a function that advances it."""
    now = [1000.0]
    monkeypatch.setattr(output, "clock", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_a_line_comes_every_thirty_seconds(pass_time, capsys):
    with meter("extract", 1000) as bar:
        for _ in range(10):  # a second each, so no line is due
            pass_time(1)
            bar.advance(20)
        pass_time(25)  # 35 s and 21%
        bar.advance(10, written=2 * 10**9)
        pass_time(20)
        bar.advance(100)
        pass_time(20)  # 40 s later: 400 rows in 75 s, so 600 take 112 s
        bar.advance(90)
        pass_time(100)
        bar.advance(600)  # no line for the end, because the result follows
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.strip() for line in err.splitlines()] == [
        "extract: 210 of 1,000 (21%), 6 rows/s  2.00 GB, 2 min left",
        "extract: 400 of 1,000 (40%), 5.33 rows/s  2.00 GB, 2 min left",
    ]


def test_results_that_are_printed_during_progress_on_a_terminal_go_to_stdout(monkeypatch, capsys):
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with meter("predict", 10) as bar:
        bar.advance(1)
        sys.stdout.write("a result\n")
    assert capsys.readouterr().out == "a result\n" and "a result" not in shown.getvalue()


def test_progress_is_printed_while_a_cell_has_redirected_its_messages(pass_time, capsys):
    seen = ""
    with output.heartbeat("reservoir"), redirect_stderr(io.StringIO()), meter("fit", 10) as bar:
        output.notify("a message of the cell")
        bar.advance(5)
        pass_time(40)
        for _ in range(6000):  # until the other thread has read the clock
            time.sleep(0.01)
            if seen := capsys.readouterr().err:
                break
    assert seen == "fit: 5 of 10 (50%), 0.125 rows/s, 40 s left\n"


def test_training_shows_running_means_and_counts_from_the_checkpoint(pass_time, capsys):
    with training_meter(100, 50, "loss {0:.2f}", units_per_step=4096, unit="tokens") as show:
        pass_time(40)
        show(70, 1.5)
    assert capsys.readouterr().err == "train: 70 of 100 (70%), 2.05e+03 tokens/s  loss 1.50, 60 s left\n"


# Every task, family and init gives an accuracy on the command line, and an unknown one gives exit code 2.

# A layout of its own in each of these: a decoder, an encoder, an encoder of a pair, a recurrent and a mixing network.
# The others are loaded by other tests, too, and differ from these in nothing that a command does.
LAYOUTS = ("gpt2", "bert", "t5", "lstm", "linformer")


@pytest.mark.parametrize(
    "kind", [*LAYOUTS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in LAYOUTS)]
)
def test_extract_and_fit_work(kind, one_cache, tmp_path, answer):
    folder = save(kind, tmp_path / kind)
    settings = ["--cache", one_cache, "--json"]
    for init in ("pretrained", "random", "statistics") if kind in LAYOUTS else ("pretrained",):
        extract = ["extract", "digits", "--backbone", str(folder), "--init", init, "--limit", "150", "--pool", "mean"]
        entry = answer(*extract, *settings)
        train, valid = FeatureStore(entry["entry"])["train"], FeatureStore(entry["entry"])["valid"]
        x, new = (np.concatenate([split[name] for name in entry["columns"]], axis=1) for split in (train, valid))
        # With ten classes, a working reservoir of width 16 is far above chance.
        assert make_pipeline(StandardScaler(), RidgeClassifier()).fit(x, train.y).score(new, valid.y) > 0.25, init
    if kind in ("gpt2", "t5", "lstm"):  # fit reads the arrays alone, so that others would show the same
        assert answer("fit", entry["entry"], "--columns", entry["columns"][0], *settings)["best"]["valid_score"] > 0.15


SEVEN = ["bit-memory", "bit-xor", "listops", "mnist", "cifar10", "cifar10-lra", "homology"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    samples.mnist_files(folder / "mnist")
    samples.cifar_files(folder, samples.cifar_arrays())
    (folder / "listops").mkdir()
    for seed, name in enumerate(("train", "val", "test")):
        expressions = random_expressions(np.random.default_rng(seed), 512, 10, 10, 10, 60)
        lines = [f"{samples.decode_text(each, nested=True)}\t{evaluate(each)}" for each in expressions]
        (folder / "listops" / f"basic_{name}.tsv").write_text("\n".join(["Source\tTarget", *lines[:40]]) + "\n")
    (folder / "remote_homology").mkdir()
    rng = np.random.default_rng(0)
    for part in PARTS.values():
        rows = [{"primary": "".join(rng.choice(list(LETTERS), 30)), "fold_label": n % 3} for n in range(20)]
        (folder / "remote_homology" / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    return folder


@pytest.mark.usefixtures("few_bits")
@pytest.mark.parametrize("task", SEVEN)
def test_prepare_extract_fit(task, data, cache, answer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    splits = 5 if task == "homology" else 3
    prepared = answer("prepare", task, "--data", data)
    assert len(prepared["rows"]) == splits and min(prepared["rows"].values()) > 0
    small = ["--backbone", "gpt2:n_layer=1,n_embd=16,n_head=2", "--init", "random", "--limit", "16"]
    extracted = answer("extract", task, "--data", data, *small)
    assert extracted["rows"] == {name: min(rows, 16) for name, rows in prepared["rows"].items()}
    best = answer("fit", task, "--alphas", "1e0:1e4:3")["best"]
    assert 0 <= best["valid_score"] <= 1 and 0 <= best["test_score"] <= 1
