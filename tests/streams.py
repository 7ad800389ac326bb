"""Streams and events that behave as those of a GPU, on the CPU."""

from torch.utils._python_dispatch import TorchDispatchMode


class Stream(TorchDispatchMode):
    """A stream of a GPU that makes its copies as late as it may: when an event after them is waited for."""

    def __init__(self, device=None):
        super().__init__()
        self.work = []

    def wait_event(self, event):
        self.work.append(event.synchronize)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function._schema.name != "aten::copy_":
            return function(*arguments, **(options or {}))
        self.work.append(lambda: function(*arguments, **(options or {})))
        return arguments[0]


class Event:
    """An event of such a stream."""

    def __init__(self, blocking=False):
        self.stream, self.place = None, 0

    def record(self, stream):
        self.stream, self.place = stream, len(stream.work)

    def synchronize(self):
        assert self.stream is not None, "an event was waited for that was never recorded"
        for number in range(self.place):
            self.stream.work[number]()
            self.stream.work[number] = lambda: None
