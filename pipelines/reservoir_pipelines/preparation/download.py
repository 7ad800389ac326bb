"""Download the publishers' files and check their SHA-256."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reservoir_cache import path_below

from reservoir.errors import InputError
from reservoir_pipelines.files import file_digest
from reservoir_pipelines.workspace import cache_root

BLOCK = 2**16
"""Bytes received at a time; an interrupted download loses fewer."""


@dataclass(frozen=True)
class Remote:
    """A file as its publisher offers it: name, SHA-256 in hex, and the addresses of folders to try in order."""

    name: str
    sha256: str
    bases: tuple[str, ...]


def _idx(bases: tuple[str, ...], *sums: str) -> tuple[Remote, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Remote(f"{name}-ubyte.gz", sha256, bases) for name, sha256 in zip(names, sums, strict=True))


_CIFAR = Remote(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz",),
)

FILES: dict[str, tuple[Remote, ...]] = {
    "mnist": _idx(
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": _idx(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "cifar10": (_CIFAR,),
    "cifar10-lra": (_CIFAR,),
}
"""The files that can be downloaded; the publishers of the proteins and of Long Range Arena give no checksums."""

FOLDERS = {"mnist": "mnist", "fashion-mnist": "fashion-mnist", "cifar10": "cifar-10", "cifar10-lra": "cifar-10"}


def download(task: str, *, cache: Path | None = None, mirrors: Sequence[str] = ()) -> Path:
    """Download the files of a task that the cache does not have, and return their folder.

    An interrupted download continues where it stopped. A file gets its name once its SHA-256 matches. Mirrors are tried
    before the publisher.
    """
    if task not in FILES:
        raise InputError(f"task {task!r} cannot be downloaded, only {', '.join(FILES)}; give --data DIR")
    folder = path_below(cache_root(cache), "downloads", FOLDERS[task])
    folder.mkdir(parents=True, exist_ok=True)
    for remote in FILES[task]:
        if not (folder / remote.name).is_file():
            _fetch(remote, folder, [*mirrors, *remote.bases])
    return folder


def _fetch(remote: Remote, folder: Path, bases: Sequence[str]) -> None:
    import requests

    part, failures = path_below(folder, f"{remote.name}.part"), []
    for base in bases:
        url = f"{base.rstrip('/')}/{remote.name}"
        try:
            _continue(url, part)
        except requests.RequestException as error:
            failures.append(f"{url}: {error}")
            continue
        if file_digest(part) == remote.sha256:
            part.replace(folder / remote.name)
            return
        part.unlink()  # the next address starts anew
        failures.append(f"{url}: checksum mismatch")
    raise InputError(
        f"{remote.name} could not be downloaded ({'; '.join(failures)}); try again, name a "
        "mirror, or download it yourself and give --data DIR"
    )


def _continue(url: str, part: Path) -> None:
    """Append the missing bytes to a partial file."""
    import requests

    here = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={here}-", "Accept-Encoding": "identity"} if here else {"Accept-Encoding": "identity"}
    with requests.get(url, headers=headers, stream=True, timeout=30) as answer:
        if here and answer.status_code == requests.codes.requested_range_not_satisfiable:
            # Nothing is missing, or this is another file; the checksum will tell.
            return
        answer.raise_for_status()
        if answer.status_code != requests.codes.partial_content:
            here = 0
        length = answer.headers.get("Content-Length")
        total = here + int(length) if length else None
        with part.open("ab" if here else "wb") as file:
            for block in answer.iter_content(BLOCK):
                file.write(block)
                here += len(block)
    if total is not None and here != total:
        raise requests.ConnectionError(f"the connection ended after {here} of {total} bytes")
