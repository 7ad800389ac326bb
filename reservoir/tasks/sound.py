"""Which tasks are samples of sounds, and at which rate."""

from reservoir.tasks.task import Task, Vectors

RATE = 16_000  # default samples per second: the rate that speech models read


def holds_samples(task: Task) -> bool:
    """Return whether the sequences of a task are the samples of sounds."""
    return bool(task.parameters.get("waveform")) and task.form == Vectors(1)
