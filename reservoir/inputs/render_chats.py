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
    """Renders chats by a template, with marks around what the assistant says."""

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
        """Return the text of a chat, with marks unless the template does not leave the answers as they are."""
        text = self._render(chat)
        for message in chat:
            content = message.get("content")
            if isinstance(content, list) and content and str(content) in text:
                raise ValueError("it prints a list of parts as it is; give each content as a text")
        letters = len(json.dumps(chat))
        if len(text) > letters + self._more_letters:
            raise ValueError(f"it makes {len(text):,} letters of a chat of {letters:,}")
        marked_chat = [self._marked(message) for message in chat]
        answer = {"text": text, "is_marked": False, "ends_with_answer": _is_answer(chat[-1])}
        # Some templates refuse, cut or repeat marked answers, for which the chat is not to blame.
        with suppress(Exception):
            marked = self._render(marked_chat)
            answers = sum(map(_is_answer, chat))
            has_all_marks = marked.count(self._start) == marked.count(self._end) == answers
            if has_all_marks and marked.replace(self._start, "").replace(self._end, "") == text:
                answer |= {"text": marked, "is_marked": True}
        return answer

    def _render(self, chat: list[dict[str, Any]]) -> str:
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
        """Return a message with marks around what the assistant says, inside the spaces that templates strip."""
        content = message.get("content")
        if not _is_answer(message) or not isinstance(content, str):
            return message
        inner = content.strip()
        before, after = content.split(inner, 1) if inner else ("", content)
        return {**message, "content": f"{before}{self._start}{inner}{self._end}{after}"}


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _send(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer requests until the input ends; the first line has the template and the limits."""
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
        answers: list[dict[str, Any]] = []
        answer: Any = answers
        try:
            answers.extend(map(renderer, chats))
        except Exception as error:  # templates raise any type
            answer = {"error": str(error) or type(error).__name__, "chat": len(answers)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answer)


if __name__ == "__main__":
    main()
