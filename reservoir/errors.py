"""The exception for invalid input, with a message that says what to do."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path


class InputError(ValueError):
    """Bad input: a name, a file, a shape or a setting.

    The message is one line: what is wrong and where, then what to do. The command line prints it
    and exits with code 2.

    Parameters
    ----------
    problem : str
        What is wrong, and where: ``runs.csv, line 12: 'ERR' is not a number in column 'temp'``.
    remedy : str, optional
        What to do, in the imperative, if ``problem`` does not end with it.
    """

    def __init__(self, problem: str, remedy: str = ""):
        super().__init__(f"{problem}; {remedy}" if remedy else problem)


class FailedError(Exception):
    """Work that failed for a reason that one line explains. The command line prints it and exits with code 1."""


def nearest(name: str, valid_names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a question with the most similar valid name, or ""."""
    by_lower_case = {valid.lower(): valid for valid in valid_names}
    matches = difflib.get_close_matches(name.lower(), list(by_lower_case), n=1)
    return f"; did you mean {by_lower_case[matches[0]]!r}?" if matches else ""


def first_line(error: BaseException, where: str = "") -> str:
    """Return the first line of an error's message, for use inside another message about the file ``where``.

    It has at most 160 characters; an error without a message gives the name of its type.
    """
    text = str(error).removeprefix(f"{where}: ")
    text = re.sub(r":\s*\n\s*", ": ", text).strip()  # transformers breaks the line after "Field x:"
    text = re.sub(r" <[^<>]* at 0x[0-9a-f]+>", "", text)  # addresses of objects mean nothing to a reader
    return text.splitlines()[0][:160] if text else type(error).__name__


@contextmanager
def as_input_error(problem: str, remedy: str) -> Iterator[None]:
    """Turn any error inside the context into an `InputError`: libraries raise nearly any type for damaged files."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # Libraries in Rust raise PanicException, which is not an Exception, for input that they do not expect. Other
        # errors that are not an Exception, such as KeyboardInterrupt, are not about the input.
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        where, _, _ = problem.partition(": ")  # which the message of the error may repeat
        raise InputError(f"{problem} ({first_line(error, where)})", remedy) from error


@contextmanager
def writing(path: Path, instead: str = "name another --out") -> Iterator[None]:
    """Turn an error of the system inside the context into an `InputError`: ``path`` cannot be written.

    ``instead`` is what to do.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})", instead) from error


def require_path(value: object, what: str) -> str:
    """Return a name or a path as text; raise `InputError` for an empty text, and for other values, such as an array.

    ``what`` is the function and its argument, such as ``predict: readout``, for the message.
    """
    if isinstance(value, str | PathLike):
        if not fspath(value):  # which `Path` would read as the current folder
            raise InputError(f"{what} is empty", "give a name or a path")
        return str(fspath(value))
    if what.endswith(": readout"):
        remedy = "pass the attribute saved of the result of fit, or run of that of train"
    else:
        remedy = "save arrays with np.savez('mine.npz', x=x, y=y), or pass them to ReservoirClassifier"
    raise InputError(f"{what} is of type {type(value).__name__}, not a name or a path", remedy)
