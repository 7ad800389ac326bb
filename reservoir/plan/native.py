"""Whether a pretrained model reads a task by its own input: its tokenizer, or its patches of images or sounds."""

from reservoir.backbones import find
from reservoir.backbones.names import SHIPPED
from reservoir.errors import InputError
from reservoir.inputs.native import open_reader
from reservoir.inputs.text_reader import TextReader, has_tokenizer
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, holds_samples
from reservoir.tasks.words import UNKNOWN, are_words


def is_native(task: Task, reservoir: Reservoir) -> bool:
    """Return whether a model was pretrained on the task's kind of data, and can read it by its own input."""
    return suits(task, reservoir) and not native_obstacle(task, reservoir)


def suits(task: Task, reservoir: Reservoir) -> bool:
    """Return whether a model was pretrained on the task's kind of data: text or letters, images, or sounds."""
    media = "pixels" if task.pictures else "sounds" if holds_samples(task) else ""
    if reservoir.init != "pretrained" or not (task.alphabet or media):
        return False
    reads = find(reservoir.backbone)[0].reads
    return reads == media if media else reads in ("letters", "text")


def native_obstacle(task: Task, reservoir: Reservoir) -> str:
    """Return why a model that suits the task cannot read it natively; empty if it can."""
    if not reservoir.plain:
        return "the options of windows, such as --patch, do not fit its own input"
    if task.alphabet and not has_tokenizer(reservoir.backbone):
        return "its folder has no tokenizer, such as a tokenizer.json or a vocab.txt"
    # Words suit every model of text. The processor of images or sounds is checked when it is opened.
    reads_words = are_words(task.alphabet) and find(reservoir.backbone)[0].reads == "text"
    if reads_words or not task.alphabet:
        return ""
    if reservoir.backbone in SHIPPED:
        return "random kernels suit letters better than a model of words"
    try:
        reader = open_reader(task, reservoir.backbone, reservoir.init)
    except InputError as error:  # with a random input layer the model needs no tokenizer
        return str(error)
    letters = task.alphabet.removeprefix(UNKNOWN).replace(" ", "")
    return reader.obstacle(letters) if isinstance(reader, TextReader) else ""
