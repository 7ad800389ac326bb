"""The program that renders chats by a model's chat template, in a process of its own with limits.

`reservoir.inputs.chat_template` starts it, and sends and reads one JSON value a line. It imports nothing of this
package, so that it starts in half a second. The template runs in the sandbox of transformers, which keeps it from
files, the network and the interpreter, but not from endless loops and memory: the limits here do that.
"""

import json
import random
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

# Templates that print the current date would give other features tomorrow. This is the date that the template of
# Llama 3 takes where the current one is not known.
FIXED_DATE = datetime(2024, 7, 26)


class FixedDate(datetime):
    """A clock that always shows `FIXED_DATE`."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        """Return the fixed date."""
        return FIXED_DATE


class Renderer:
    """Renders chats by a template, with marks around what the assistant says.

    Parameters
    ----------
    template : str
        The template, in Jinja.
    special_tokens : mapping of str to str
        The special tokens of the tokenizer by name, which templates may print.
    marks : sequence of str
        The letters that begin and end a marked answer.
    more_letters : int
        How many letters a template may add to a chat.
    """

    def __init__(
        self, template: str, special_tokens: Mapping[str, str], marks: Sequence[str], more_letters: int
    ) -> None:
        from transformers.utils import chat_template_utils

        self._module: Any = chat_template_utils
        self._module.datetime = FixedDate
        self._template, self._special_tokens = template, special_tokens
        self._start, self._end = marks
        self._more_letters = more_letters

    def __call__(self, chat: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the text of a chat, with marks unless the template does not leave the answers as they are.

        The result has the ``text``, whether it ``is_marked``, and whether it ``ends_with_answer``. Raise whatever the
        template raises, and `ValueError` for a text that it should not make.
        """
        text = self._render(chat)
        for message in chat:
            content = message.get("content")
            if isinstance(content, list) and content and str(content) in text:
                raise ValueError("it prints a list of parts as it is; give each content as a text")
        letters = len(json.dumps(chat))
        if len(text) > letters + self._more_letters:
            raise ValueError(f"it makes {len(text):,} letters of a chat of {letters:,}")
        # The text without marks is the result, unless that with marks is the same but for the marks.
        marked_chat = [self._marked(message) for message in chat]
        answer = {"text": text, "is_marked": False, "ends_with_answer": _is_answer(chat[-1])}
        # Some templates refuse, cut or repeat marked answers, for which the chat is not to blame.
        with suppress(Exception):
            marked_text = self._render(marked_chat)
            answers = sum(map(_is_answer, chat))
            has_all_marks = marked_text.count(self._start) == marked_text.count(self._end) == answers
            without_marks = marked_text.replace(self._start, "").replace(self._end, "")
            if has_all_marks and without_marks == text:
                answer |= {"text": marked_text, "is_marked": True}
        return answer

    def _render(self, chat: list[dict[str, Any]]) -> str:
        """Return the text of a chat; raise whatever the template raises."""
        random.seed(0)  # a template that draws renders equal chats alike
        # A chat that ends with a question is followed by what begins the answer.
        texts, _ = self._module.render_jinja_template(
            conversations=[chat],
            chat_template=self._template,
            add_generation_prompt=not _is_answer(chat[-1]),
            **self._special_tokens,
        )
        return texts[0]

    def _marked(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with marks around what the assistant says; other messages are returned as they are.

        White space around the answer stays outside of the marks, because templates may strip it.
        """
        content = message.get("content")
        if not _is_answer(message) or not isinstance(content, str):
            return message
        answer = content.strip()
        before, after = content.split(answer, 1) if answer else ("", content)
        return {**message, "content": f"{before}{self._start}{answer}{self._end}{after}"}


def _is_answer(message: Mapping[str, Any]) -> bool:
    """Return whether the assistant says a message."""
    return message.get("role") == "assistant"


def _send(value: Any) -> None:
    """Write a value as a line of JSON, at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer requests until the input ends.

    The first line of the input has the template and the limits. Each further one is a request, a list of chats. The
    answer to it is a list of dicts (see `Renderer`), or a dict with the number of the first ``chat`` that the template
    refuses and its ``error``.
    """
    settings = json.loads(sys.stdin.readline())
    renderer = Renderer(
        settings["template"], settings["special_tokens"], settings["marks"], settings["more_letters"]
    )
    with suppress(ValueError, OSError):  # not every system limits memory
        resource.setrlimit(resource.RLIMIT_AS, (settings["bytes"], settings["bytes"]))
    _send({"ready": True})
    for line in sys.stdin:
        # When this processor time is used up, the system ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, settings["seconds"])
        chats = json.loads(line)
        texts: list[dict[str, Any]] = []
        answer: Any = texts
        try:
            # A text is added as soon as it is made, so their number is that of the chat at which this fails.
            texts.extend(map(renderer, chats))
        except Exception as error:  # templates raise any type
            answer = {"error": str(error) or type(error).__name__, "chat": len(texts)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answer)


if __name__ == "__main__":
    main()
