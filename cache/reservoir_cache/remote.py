"""A folder behind an fsspec URL (``s3://``, ``gs://``, ``file://`` ...): files are read and written, links refused.

A URL may contain credentials. They go to fsspec and nowhere else: messages show the URL without them, and errors of
other libraries, which often repeat the URL, are shown with what is secret replaced by ``***``.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from reservoir_cache.errors import CacheError
from reservoir_cache.paths import READ_BYTES, crc32_of, refuse_links
from reservoir_cache.spec import NAME_FORM

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

HIDDEN = "***"  # what messages show instead of a secret
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_MESSAGE_LENGTH = 200  # characters of another library's error in a message, which is one line


class RemoteError(CacheError):
    """A URL that cannot be read or written: no network, no permission, no such bucket."""


def is_url(text: str) -> bool:
    """Return whether a text is a URL rather than the name or the path of an entry."""
    return "://" in text


def without_credentials(text: str) -> str:
    """Return a text in which no URL has a user, a password, a query or a fragment."""
    return _URL.sub(lambda match: _shown(match[0]), text)


def _shown(url: str) -> str:
    """Return a URL without its user, password, query and fragment, for messages."""
    scheme, _, after_scheme = url.partition("://")
    address, *query = re.split("[?#]", after_scheme, maxsplit=1)
    # An '@' after a '?' may end a password that contains '?', so nothing of this URL is safe to show.
    is_ambiguous = bool(query) and "@" in query[0]
    if is_ambiguous:
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{address.removeprefix(f'{_userinfo(address)}@')}"


def _userinfo(after_scheme: str) -> str:
    """Return ``user:password`` of a URL without its scheme, an empty text if it has none."""
    before_slash = after_scheme.partition("/")[0]
    # S3's secret keys may contain '/', so a password may go on after the first '/', and ends at the URL's last '@'.
    # What follows a colon is such a password, unless it is the number of a port.
    _, colon, after_colon = before_slash.rpartition(":")
    has_password = bool(colon) and not after_colon.isdigit()
    has_userinfo = "@" in before_slash or has_password
    return after_scheme.rpartition("@")[0] if has_userinfo else ""


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of a file system of fsspec. Its files are named by their path in it, such as ``train/00000-0.h5``."""

    title: str  # the URL without credentials, for messages
    path: str  # of the folder, as the file system names it
    filesystem: "AbstractFileSystem"  # fsspec's object for the kind of the URL
    secrets: tuple[str, ...]  # texts that no message may contain

    @classmethod
    def open(cls, url: str) -> "RemoteFolder":
        """Return the folder of a URL, which need not exist; raises CacheError if the URL cannot be used."""
        import fsspec

        title = without_credentials(url)
        userinfo = _userinfo(url.partition("://")[2])
        if "::" in url or re.search("[?#]", url):
            raise CacheError(
                f"{title}: a URL with '::', '?' or '#' is not the URL of a folder; give one such as s3://bucket/folder"
            )
        # The URL, user and password are secret, also as another library may show them: with %-codes decoded.
        as_written = [url, userinfo, *userinfo.split(":")]
        decoded = [unquote(text) for text in as_written]
        secrets = tuple(dict.fromkeys(text for text in (*as_written, *decoded) if text))
        with _reported(title, "be opened", secrets):
            filesystem, path = fsspec.url_to_fs(url)
            filesystem.invalidate_cache()  # other processes may have written since this one has listed it
        # A file system that does not know users takes user and password for a part of the path.
        if userinfo and f"{userinfo}@" in path:
            raise CacheError(
                f"{title}: this kind of URL takes no user or password; set them in the environment, as its package says"
            )
        folder = cls(title.rstrip("/"), path.rstrip("/"), filesystem, secrets)
        # fsspec would create a folder whose name has the %-codes of file:// URLs, such as "%20", as they are written.
        if folder._is_local and unquote(path) != path and not Path(path).exists():
            raise CacheError(
                f"{title}: no such folder, and %-codes are not decoded; give {unquote(title)!r}"
            )
        return folder

    def below(self, *names: str) -> "RemoteFolder":
        """Return the folder in this one that ``names`` lead to; raises CacheError if one of them is a link."""
        folder = replace(self, title="/".join((self.title, *names)), path="/".join((self.path, *names)))
        if self._is_local:  # elsewhere paths cannot be checked
            refuse_links(*(Path(self.path, *names[:depth]) for depth in range(1, len(names) + 1)))
        return folder

    def folders(self) -> list[str]:
        """Return the names of the folders in this one, sorted, without those that no entry or task can have."""
        with self._reported("be listed"):
            try:
                items = self.filesystem.ls(self.path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            paths = [item["name"].rstrip("/") for item in items if item["type"] == "directory"]
        names = [path.rpartition("/")[2] for path in paths]
        return sorted(name for name in names if NAME_FORM.fullmatch(name))

    def size(self, file: str) -> int | None:
        """Return the size of a file, None if it does not exist; raises CacheError for a link, a pipe or a device."""
        self._folder_of(file)  # called for its check
        with self._reported("be read", file):
            try:
                info = self.filesystem.info(f"{self.path}/{file}")
            except (FileNotFoundError, NotADirectoryError):
                return None
            if info.get("type") != "file" or info.get("islink"):
                raise CacheError(f"{self.title}/{file}: not a regular file; remove it")
            if type(info["size"]) is not int:
                raise ValueError("its server does not say how large it is")
        return info["size"]

    def parts(self, file: str, limit: int) -> Iterator[bytes]:
        """Yield the content of a file in pieces; raises CacheError if it has more than ``limit`` bytes."""
        size = self.size(file)
        if size is None:
            raise CacheError(f"{self.title}/{file}: missing; copy the entry there again")
        # Check the limit twice: what a server sends need not have the size that it has announced.
        read_bytes = 0
        with self._reported("be read", file), self.filesystem.open(f"{self.path}/{file}", "rb") as opened:
            source: Any = opened  # its type does not say that it reads bytes
            while size <= limit and (content := source.read(READ_BYTES)):
                read_bytes += len(content)
                if read_bytes > limit:
                    break
                yield bytes(content)
        if max(size, read_bytes) > limit:
            raise CacheError(
                f"{self.title}/{file}: larger than {limit:,} bytes; copy the entry there again"
            )

    def read(self, file: str, limit: int) -> bytes | None:
        """Return the content of a file, None if it does not exist; raises CacheError beyond ``limit`` bytes."""
        return None if self.size(file) is None else b"".join(self.parts(file, limit))

    def holds(self, file: str, size: int, crc32: str) -> bool:
        """Return whether a file exists with this size and this CRC-32; the whole file is read."""
        if self.size(file) != size:
            return False
        crc = 0
        for content in self.parts(file, size):
            crc = crc32_of(content, crc)
        return f"{crc:08x}" == crc32

    def send(self, source: Path, file: str) -> None:
        """Write a file with the content of a local one; raises CacheError for a link, which would be followed."""
        self.size(file)  # called for its check that an existing file is no link
        self._make_folder_of(file)
        with self._reported("be written", file):
            self.filesystem.put_file(str(source), f"{self.path}/{file}")
        expected = source.stat().st_size
        if (size := self.size(file)) != expected:
            raise RemoteError(
                f"{self.title}/{file}: has {size} bytes after {expected} were written; run the same command again"
            )

    def remove(self, file: str) -> None:
        """Remove a file, if it exists."""
        if self.size(file) is not None:
            with self._reported("be removed", file):
                self.filesystem.rm_file(f"{self.path}/{file}")

    def _make_folder_of(self, file: str) -> None:
        """Create the folder of a file, if the file system has folders."""
        folder = self._folder_of(file)
        has_folders = folder.path.startswith("/")  # the paths of object stores begin with a bucket
        if has_folders:
            with self._reported("be written", file):
                self.filesystem.makedirs(folder.path, exist_ok=True)

    def _folder_of(self, file: str) -> "RemoteFolder":
        """Return the folder of a file; raises CacheError if it is behind a link."""
        return self.below(*file.split("/")[:-1])

    @property
    def _is_local(self) -> bool:
        """Whether the files lie in the file system of this machine."""
        return bool(getattr(self.filesystem, "local_file", False))

    def _reported(self, action: str, file: str = "") -> Any:
        """Return the context `_reported` for an action on a file of this folder, by default on the folder itself."""
        return _reported(f"{self.title}/{file}" if file else self.title, action, self.secrets)


@contextmanager
def _reported(title: str, action: str, secrets: tuple[str, ...]) -> Iterator[None]:
    """Raise each error of another library as a RemoteError in one line without what is secret.

    The message says what cannot be done: ``action`` is such as "be read", and ``title`` is the URL to show.
    """
    try:
        yield
    except CacheError:
        raise  # our own message, which has no secrets
    except ImportError:
        # The packages are named in pyproject.toml; fsspec's own message names one without its version.
        problem = f"{title}: its package is not installed"
        raise RemoteError(f"{problem}; run pip install 'reservoir-features[remote]'") from None
    except Exception as error:
        # ``from None``: a traceback must not show the original message, which may repeat the URL.
        reason = _safe_reason(error, secrets)
        problem = f"{title}: cannot {action} ({reason})"
        raise RemoteError(f"{problem}; check the URL, the network and your credentials") from None


def _safe_reason(error: Exception, secrets: tuple[str, ...]) -> str:
    """Return the beginning of an error's message with secrets hidden, or its type if it has no message."""
    text = " ".join(str(error).split())
    # The longest first: a short secret may be part of a long one, whose remainder would then be shown.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return without_credentials(text)[:_MESSAGE_LENGTH] or type(error).__name__
