"""The command ``reservoir``, also ``python -m reservoir_pipelines``."""

import sys

OBJECTS = 50_000
"""New objects after which the collector of reference cycles runs; Python's default is 700."""


def open_closed_streams() -> None:
    """Open each standard stream that the caller closed, such as by ``>&-``, so that its output goes nowhere.

    Python has no stream for it, and the next file that is opened would get its number, so that what libraries print
    would be written into that file.
    """
    import os

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, which is that of the stream
            os.set_inheritable(number, True)  # as that of a stream is
            setattr(sys, name, os.fdopen(number, mode))


def main() -> None:
    """Run the command line; Ctrl-C ends it with exit code 130, even while modules are being imported."""
    import gc
    import os
    import signal

    # Importing torch and transformers makes about a million objects, none of them garbage. With its defaults, Python's
    # collector of reference cycles scans them so often that this takes a tenth of the time of a short command.
    gc.set_threshold(OBJECTS, 10, 10)
    open_closed_streams()
    # While modules are imported, Ctrl-C ends the process at once: no work has begun, so nothing is lost, and a
    # KeyboardInterrupt would end in a traceback. A shell starts background jobs with Ctrl-C ignored, which stays so.
    original_handler = signal.getsignal(signal.SIGINT)
    if original_handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from reservoir_pipelines import cli

    signal.signal(signal.SIGINT, original_handler)
    try:
        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("reservoir: interrupted\n")
        sys.exit(130)
    finally:
        # At its end, Python looks for reference cycles among all objects once more, which takes a fifth of a second
        # with torch imported. Frozen objects are left out; the end of the process frees them.
        gc.freeze()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # python -m puts the current folder first on the import path, where a file typer.py would be executed.
        del sys.path[0]
    main()
