"""Training steps that a recorder captures equal the steps of an ordinary run; a fake recorder stands for the GPU."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reservoir_pipelines import train
from reservoir_pipelines.training import inputs
from reservoir_pipelines.training.run_folder import RunFolder
from safetensors.torch import load_file

from reservoir import devices
from reservoir.cuda_graphs import WARM_UP, RepeatedBatches
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.options import TrainOptions
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Split, Task, Vectors
from reservoir.training import steps
from reservoir.training.rows import TrainingBatch, raw_batch, read_ahead
from reservoir.training.steps import CapturedSteps, capture_on_gpu
from reservoir.training.trainer import ArrivingValues, DivergedError, Processes, Trainer
from tests.helpers import assert_same_bits

CPU = torch.device("cpu")
MODEL = {
    "backbone": "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70,initializer_range=0.3",
    "init": "random",
    "device": "cpu",
    "compute": "float32",
}


class Tape:
    """Records steps as a GPU does: a capture computes nothing, a replay computes on what the buffers hold then."""

    def __init__(self, error=None):
        self.events, self.graphs, self.error = [], [], error

    def run(self, step):
        self.events.append("run")
        return step()

    def capture(self, step):
        self.events.append("capture")
        if self.error:
            raise RuntimeError(self.error)
        self.graphs.append(TapedGraph(self.events, step))
        return self.graphs[-1]


class TapedGraph:
    def __init__(self, events, step):
        self.events, self.step, self.values = events, step, torch.empty(3)

    def replay(self):
        self.events.append("replay")
        self.values.copy_(self.step())


def batch_of(rows, tokens, value, is_full=None):
    lengths = torch.full((rows,), tokens)
    return TrainingBatch(torch.full((rows, tokens, 2), value), torch.full((rows, 1, 1), value), lengths, is_full)


def sums_of(rows):
    return torch.stack([rows.x.sum(), rows.y.sum(), rows.lengths.sum().float()])


def test_each_shape_is_captured_once_after_its_warm_up_and_reads_its_own_rows():
    tape, lines = Tape(), []
    steps = CapturedSteps(sums_of, CPU, tape, lines.append)
    draw = np.random.default_rng(0)
    shapes = [(8, None), (5, None), (8, True), (8, False)]
    taken = dict.fromkeys(shapes, 0)
    for number in range(60):
        tokens, is_full = shape = shapes[draw.integers(len(shapes))]
        batch = batch_of(3, tokens, float(number), is_full)
        before = len(tape.events)
        assert torch.equal(steps(batch), sums_of(batch)), (number, shape)
        new = tape.events[before:]
        expected = ["run"] if taken[shape] < WARM_UP else ["replay"]
        assert new == (["capture", *expected] if taken[shape] == WARM_UP else expected)
        taken[shape] += 1
    assert len(tape.graphs) == len(shapes) and min(taken.values()) > WARM_UP and not lines
    # The memory of a graph is that of its warm-up, and no other graph has it.
    inputs_of_graphs = {graph.step.args[0].x.data_ptr() for graph in tape.graphs}
    assert len(inputs_of_graphs) == len(shapes)


def test_a_failed_capture_is_reported_in_one_line_and_steps_go_on():
    tape, lines = Tape("operation not permitted\nwith much detail"), []
    steps = CapturedSteps(sums_of, CPU, tape, lines.append)
    for number in range(3 * WARM_UP):
        batch = batch_of(2, 4 + number % 2, float(number))
        assert torch.equal(steps(batch), sums_of(batch))
    assert tape.events.count("capture") == 1 and "replay" not in tape.events
    assert len(lines) == 1 and lines[0].endswith("slower: operation not permitted")


def write_rows(path: Path) -> str:
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(90, 40, 2)).astype(np.float32), draw.integers(4, 41, 90)
    np.savez(path, x=x, y=np.arange(90) % 3, lengths=lengths)
    return str(path)


@pytest.fixture
def tapes(monkeypatch):
    """Let trainings on the CPU capture their steps on tapes, and pad their rows as on a GPU."""
    tapes = []

    def capture_on_tape(model, options, ranks, report):
        tapes.append(Tape())
        return lambda step: CapturedSteps(step, model.device, tapes[-1], report)

    monkeypatch.setattr(inputs, "capture_on_gpu", capture_on_tape)
    return tapes


@pytest.fixture
def padded_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(devices, "on_gpu", lambda device: True)


def weights(result):
    return load_file(RunFolder(result.path).last.path / "trained.safetensors")


SETTINGS = {**MODEL, "steps": 40, "eval_every": 13, "batch": 4, "dropout": 0.2}


def test_captured_runs_equal_ordinary_ones_at_several_lengths_and_after_a_stop(
    cache, tmp_path, monkeypatch, padded_as_on_a_gpu, tapes
):
    rows = write_rows(tmp_path / "rows.npz")
    whole = train(rows, **SETTINGS, run=tmp_path / "captured")
    (tape,) = tapes
    assert tape.events.count("replay") > 10 and len(tape.graphs) >= 2, "several lengths are captured"
    train(rows, **SETTINGS | {"steps": 17}, run=tmp_path / "stopped")
    resumed = train(rows, **SETTINGS, resume=True, run=tmp_path / "stopped")
    monkeypatch.setattr(inputs, "capture_on_gpu", lambda *_: None)
    ordinary = train(rows, **SETTINGS, run=tmp_path / "ordinary")
    for other in (ordinary, resumed):
        assert_same_bits(weights(whole), weights(other))
        assert other.losses == whole.losses and other.test_loss == whole.test_loss
    lines = [json.loads(line)["step"] for line in (whole.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == sorted(lines) and len(lines) == 40 + 4


def test_rows_of_a_gpu_are_padded_to_few_lengths_and_say_whether_they_are_full(padded_as_on_a_gpu, monkeypatch):
    task = Task(name="t", form=Vectors(2), max_tokens=100, classes=2)
    model = load_model(
        task, Reservoir(backbone=MODEL["backbone"].replace("70", "100"), init="random"), "cpu", "float32"
    )
    x = np.random.default_rng(0).normal(size=(2, 100, 2)).astype(np.float32)
    counts = set()
    for longest in range(2, 101):
        rows = Split(x=x[:, :longest], y=np.zeros((2, 1, 1), np.int64), lengths=np.array([longest, longest // 2]))
        padded = raw_batch(model, None, rows)
        tokens = padded.x.shape[1]
        counts.add(tokens)
        assert longest <= tokens <= max(longest, 17 / 16 * longest) and tokens <= 100
        assert torch.equal(padded.x[:, :longest], torch.from_numpy(rows.x)) and not padded.x[:, longest:].any()
        full = raw_batch(model, None, Split(x=rows.x, y=rows.y, lengths=np.array([longest] * 2)))
        assert (padded.is_full, full.is_full) == (False, tokens == longest)
    assert len(counts) < 65 and max(counts) == 100
    monkeypatch.undo()
    on_cpu = raw_batch(model, None, Split(x=x, y=rows.y, lengths=np.array([37, 5])))
    assert on_cpu.x.shape == (2, 37, 2) and on_cpu.is_full is None


@pytest.mark.parametrize(
    ("settings", "captures"),
    [
        ({}, True),
        ({"device": "cpu"}, False),
        ({"reads_values": True}, False),
        ({"accumulate": 2}, False),
        ({"processes": 2}, False),
        ({"compiled": True}, False),
    ],
)
def test_steps_are_captured_on_cuda_if_nothing_in_them_waits(settings, captures, monkeypatch):
    monkeypatch.setattr(steps, "CudaRecorder", lambda device: Tape())
    family = SimpleNamespace(reads_values=settings.get("reads_values", False))
    fpt = SimpleNamespace(backbone=SimpleNamespace(family=family))
    model = SimpleNamespace(device=torch.device(settings.get("device", "cuda")), fpt=fpt)
    options = TrainOptions(accumulate=settings.get("accumulate", 1), compiled=settings.get("compiled", False))
    capture = capture_on_gpu(model, options, Processes(count=settings.get("processes", 1)), print)
    assert isinstance(capture(sums_of), CapturedSteps) if captures else capture is None


class SlowEvent:
    """An event of a copy that arrives when the test says so, or when someone waits for it."""

    def __init__(self):
        self.arrived, self.waited = False, 0

    def record(self, _stream):
        self.arrived = False

    def query(self):
        return self.arrived

    def synchronize(self):
        self.arrived, self.waited = True, self.waited + 1


def test_values_are_read_in_order_once_they_have_arrived_and_before_their_place_is_used_again():
    arriving, read, static = ArrivingValues(2, CPU, SlowEvent), [], torch.empty(2)
    events = arriving._events
    for number in range(3 * ArrivingValues.LIMIT):
        static[0], static[1] = number, -number  # a graph replaces its values at each step
        arriving.add(static)
        read += arriving.arrived()
        assert len(read) == max(0, number + 1 - (ArrivingValues.LIMIT - 1)), "only what must arrive is waited for"
    missing = 3 * ArrivingValues.LIMIT - len(read)
    assert sum(event.waited for event in events) == len(read)
    for event in events:
        event.arrived = True
    read += arriving.arrived()
    assert sum(event.waited for event in events) == len(read) - missing, "what has arrived is read without waiting"
    arriving.add(static)
    read += arriving.arrived(most_missing=0)
    assert read[:-1] == [[number, -number] for number in range(3 * ArrivingValues.LIMIT)] and read[-1] == read[-2]


class ScriptedSteps:
    """Steps whose losses are given."""

    value_names = ("loss", "norm")

    def __init__(self, losses):
        self.losses, self.drawn = losses, []

    def draw(self, step):
        self.drawn.append(step)
        return step

    def take(self, step, batch):
        assert batch == step
        return torch.tensor([self.losses[step], 1.0])

    def validate(self, step):
        return {"valid_loss": 1.0}

    def better(self, values, best):
        return False


@pytest.mark.parametrize("make_event", [None, SlowEvent])
def test_a_loss_that_diverged_is_the_last_one_reported_though_later_steps_were_taken(make_event, monkeypatch):
    reported, steps = [], ScriptedSteps([1.0, 2.0, 3.0, float("nan"), 5.0, 6.0])
    trainer = Trainer(torch.nn.Linear(1, 1), steps, 6, lambda *values: reported.append(values), lambda _: None)
    monkeypatch.setattr(
        "reservoir.training.trainer.ArrivingValues",
        lambda count, device: ArrivingValues(count, device, make_event),
    )
    with pytest.raises(DivergedError, match="nan at step 4"):
        trainer.run(6)
    assert [step for step, _ in reported] == [1, 2, 3, 4]
    assert steps.drawn == list(range(6 if make_event else 5))


def test_rows_are_read_one_item_ahead_in_order():
    started = []

    def read(item):
        started.append(item)
        if item == 7:
            raise ValueError(item)
        return 2 * item

    assert list(read_ahead(read, range(6))) == [0, 2, 4, 6, 8, 10]
    assert list(read_ahead(read, [])) == []
    started.clear()
    results = read_ahead(read, range(5, 9))
    assert [next(results), next(results)] == [10, 12]
    with pytest.raises(ValueError, match="7"):
        next(results)
    assert 8 not in started or started == [5, 6, 7, 8]


def test_the_forward_pass_is_one_graph_for_a_compiler():
    task = Task(name="t", form=Vectors(2), max_tokens=12, classes=3)
    fpt = load_model(task, Reservoir(backbone=MODEL["backbone"], init="random"), "cpu", "float32").fpt
    whole = torch.compile(fpt, fullgraph=True, backend="eager")
    x, lengths = torch.randn(3, 12, 2), torch.tensor([12, 7, 2])
    logits = fpt(x, lengths, False)
    assert torch.equal(whole(x, lengths, False), logits) and logits.std() > 0


def test_small_batches_of_repeated_shapes_are_captured_and_have_the_features_of_others(monkeypatch):
    task = Task(name="t", form=Vectors(4), max_tokens=40, classes=2)
    model = load_model(task, Reservoir(**{name: MODEL[name] for name in ("backbone", "init")}), "cpu", "float32")
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, 41, 300)
    x = draw.normal(size=(300, 40, 4)).astype(np.float32)
    names = ("block01/mean", "final/last")
    expected = forward(model, None, x, lengths, names, 1)
    tape = BatchTape()
    repeated = replace(model, repeated=RepeatedBatches(tape))
    features = forward(repeated, None, x, lengths, names, 1)
    assert tape.captures > 1 and tape.replays > tape.captures
    for name in names:
        assert np.array_equal(features[name], expected[name])
    # Large batches run as usual.
    monkeypatch.setattr("reservoir.features.MOST_TOKENS", 0)
    forward(replace(model, repeated=RepeatedBatches(other := BatchTape())), None, x, lengths, names, 1)
    assert other.runs == other.captures == 0


def test_a_batch_that_cannot_be_captured_runs_without_a_graph_and_is_not_tried_again():
    tape = BatchTape(error="not permitted")
    batches = RepeatedBatches(tape)
    x = torch.ones(2, 3)
    with pytest.warns(UserWarning, match="not permitted"):
        values = [batches(lambda tensors: 2 * tensors[0], [x], "double") for _ in range(20)]
    assert tape.captures == 1 and all(torch.equal(value, 2 * x) for value in values)


def test_graphs_are_given_up_if_the_first_replay_of_one_gives_other_values(monkeypatch):
    batches, x = RepeatedBatches(tape := BatchTape()), torch.ones(2, 3)
    work = lambda tensors: {"a": 2 * tensors[0]}  # noqa: E731
    monkeypatch.setattr(tape, "capture", lambda _: BatchTape().capture(lambda: {"a": torch.zeros(2, 3)}))
    with pytest.warns(UserWarning, match="other values"):
        values = [batches(work, [x], "double") for _ in range(20)]
    assert tape.replays == 0 and all(torch.equal(value["a"], 2 * x) for value in values)


class BatchTape:
    """Records batches as a GPU does: a replay computes on what the buffers hold, into the same tensors."""

    def __init__(self, error=None):
        self.runs = self.captures = self.replays = 0
        self.error = error

    def run(self, work):
        self.runs += 1
        return work()

    def capture(self, work):
        self.captures += 1
        if self.error:
            raise RuntimeError(self.error)
        return BatchGraph(self, work)


class BatchGraph:
    def __init__(self, tape, work):
        self.tape, self.work = tape, work
        self.values = work()  # of which the memory alone is used

    def replay(self):
        self.tape.replays += 1
        for name, value in self.work().items():
            self.values[name].copy_(value)
