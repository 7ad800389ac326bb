"""What identifies this program: a checksum of each of its packages, and the versions of its libraries."""

import hashlib
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("reservoir", "reservoir_cache", "reservoir_pipelines")
CODE = (".py", ".toml")  # suffixes of the files that decide what is computed


@cache  # a process keeps the code that it has imported, even if the files change later
def program_versions() -> dict[str, str]:
    """Return a checksum of each package of this program, and the versions of the libraries that affect its results."""
    packages = {package: f"SHA-256 {package_digest(package)[:16]}" for package in PACKAGES}
    return packages | {name: version(name) for name in ("torch", "transformers")}


def package_digest(package: str) -> str:
    """Return the SHA-256 of the names and contents of a package's Python and TOML files, sorted by relative path."""
    spec = find_spec(package)
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix in CODE}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
