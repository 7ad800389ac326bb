"""A model's chat template: chats become texts, as ``apply_chat_template`` of transformers renders them.

The template comes with the model, often from a stranger. The sandbox of transformers keeps it from files and the
network, and `render_chats` runs it in another process, whose processor time and memory are limited: an endless loop
inside this process could not be stopped, because it may run in a thread and inside compiled code.
"""

import hashlib
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import environ
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.tasks.texts import SPAN_END, SPAN_START, MarkedText, parse_marks

MAX_TEMPLATE = 2**20  # letters of a template; the longest published ones have about 20,000
CHATS = 256  # chats of a request, which shares a limit of time
SECONDS = 10.0  # processor time of a request; common templates take about 0.1 ms for a chat
MEMORY = 2**31  # bytes of address space of the process, of which Python and NumPy take less than half
MORE_LETTERS = 2**20  # letters that a template may add to a chat
REMEDY = "repair the template, or use another model"


class ChatTemplate:
    """The chat template of a model, which a process of its own runs.

    Parameters
    ----------
    template : str
        The template, in Jinja.
    special_tokens : mapping of str to str
        The special tokens of the tokenizer by name, such as ``bos_token``, which templates may print.
    where : str
        What messages call the model.
    """

    def __init__(self, template: str, special_tokens: Mapping[str, str], where: str) -> None:
        if len(template) > MAX_TEMPLATE:
            raise InputError(
                f"{where}: its chat template has {len(template):,} letters, more than {MAX_TEMPLATE:,}",
                REMEDY,
            )
        self.digest = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
        self._where = where
        self._settings = {
            "template": template,
            "special_tokens": dict(special_tokens),
            "marks": [SPAN_START, SPAN_END],
            "seconds": SECONDS,
            "bytes": MEMORY,
            "more_letters": MORE_LETTERS,
        }
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()  # a thread that loads rows and one that checks them may both render

    def render(self, chats: Sequence[str]) -> list[MarkedText]:
        """Return the texts of chats, each the JSON list of its messages; the spans are the assistant's answers.

        A chat that does not end with an answer is followed by the beginning of one (``add_generation_prompt``).
        """
        with self._lock:
            texts: list[MarkedText] = []
            for start in range(0, len(chats), CHATS):
                request = chats[start : start + CHATS]
                answer = self._send_request(request)
                # A dict says which chat is refused, and why; a list has a text for each chat.
                if isinstance(answer, dict):
                    refusal = _refusal(request, answer)
                    raise InputError(f"{self._where}: {refusal}", REMEDY)
                texts += map(_marked_text, answer)
            return texts

    def refusals(self, chats: Sequence[str]) -> dict[int, str]:
        """Return the numbers of the chats that the template refuses, with the reasons."""
        refused: dict[int, str] = {}
        with self._lock:
            start = 0
            while start < len(chats):
                request = chats[start : start + CHATS]
                answer = self._send_request(request)
                # A dict names the first chat that is refused, and why. The next request begins with the chat after it.
                if isinstance(answer, dict):
                    number = start + answer["chat"]
                    refused[number] = _refusal(request, answer)
                    start = number + 1
                else:
                    start += len(request)
        return refused

    def _send_request(self, chats: Sequence[str]) -> Any:
        """Return the answer to a request for some chats; refuse a template that exceeds a limit.

        It is a list of dicts, one for each chat, or a dict about the first chat that the template refuses; see
        `render_chats`. The caller holds the lock.
        """
        is_new = self._process is None
        process = self._process = self._process or self._start()
        try:
            if is_new:  # the first line has the template and the limits
                self._exchange(process, json.dumps(self._settings))
            return self._exchange(process, f"[{','.join(chats)}]")
        except (
            OSError,
            ValueError,
            EOFError,
        ):  # the process has ended, or ends in the middle of its answer
            process.kill()  # if it has not ended by itself
            status = process.wait()
            self._process = None  # the next request starts another
            raise InputError(
                f"{self._where}: its chat template {_excess(status, len(chats))}", REMEDY
            ) from None

    def _start(self) -> "subprocess.Popen[str]":
        """Start the program `render_chats`, and let it end with this object."""
        process = subprocess.Popen(
            # Without the user's modules and settings of Python, which the program does not need; with UTF-8 in any
            # locale, because this process sends and reads UTF-8.
            [sys.executable, "-I", "-X", "utf8", str(Path(__file__).with_name("render_chats.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, "OPENBLAS_NUM_THREADS": "1", "USE_TORCH": "0"},
            text=True,
            encoding="utf-8",
        )
        weakref.finalize(self, _stop, process)
        return process

    @staticmethod
    def _exchange(process: "subprocess.Popen[str]", request: str) -> Any:
        """Send a line to the process, and return the JSON value that it answers; raise `EOFError` if it has ended."""
        assert process.stdin and process.stdout
        process.stdin.write(request + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith("\n"):  # the process ended before its answer was complete
            raise EOFError
        return json.loads(line)


def _excess(status: int, chats: int) -> str:
    """Return which limit a template exceeded, by the exit ``status`` of its process, in a request for so many chats."""
    # `render_chats` limits processor time by ITIMER_PROF, a timer whose signal, SIGPROF, ends the process.
    took_too_long = status == -signal.SIGPROF
    if took_too_long:
        return f"took more than {SECONDS:.0f} seconds for {chats:,} chats"
    return f"ended its process (status {status}), perhaps because it took more than {MEMORY / 2**30:.0f} GB"


def _refusal(request: Sequence[str], answer: Mapping[str, Any]) -> str:
    """Return a message on the chat of a request that the template refuses, and why, from the process's answer."""
    chat = request[answer["chat"]]
    reason = " ".join(answer["error"].split())[:160]  # in one line
    return f"its chat template refuses the chat {chat[:60]!r}... ({reason})"


def _marked_text(answer: Mapping[str, Any]) -> MarkedText:
    """Return the process's answer for a chat as a text with the spans of the assistant's answers."""
    marked = parse_marks(answer["text"])
    spans = marked.spans if answer["is_marked"] else None  # None: where the answers stand is not known
    return replace(marked, spans=spans, ends_with_answer=answer["ends_with_answer"])


def _stop(process: "subprocess.Popen[str]") -> None:
    """Close the pipes to the program `render_chats`, which ends it, and wait for its end."""
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what the program has not read cannot be sent any more
            if pipe:
                pipe.close()  # the program ends with its input
    process.wait()
