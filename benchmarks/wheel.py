"""Measure the size of the wheel, and run the main job from it in an empty environment without a network.

    python benchmarks/wheel.py                # takes minutes: pip installs all dependencies

The script builds the wheel, installs it with pip into a fresh virtual environment, and runs ``reservoir extract
digits`` and ``reservoir fit digits`` there, without a network and with an empty cache. It uses a network namespace; if
the system does not permit one, Python refuses every connection and ``HF_HUB_OFFLINE`` is set. The script first checks
that there is no network. Goals: the wheel is under 20 MB, and both commands succeed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 20e6
SHIPPED = ("reservoir/backbones/mini/config.json", "reservoir/backbones/mini/model.safetensors")
NAMESPACE = ("unshare", "--net", "--map-root-user")

GUARD = """
import socket

def refuse(*_):
    raise OSError("the network is off")

socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = refuse
"""
"""Code that Python runs at its start, as ``sitecustomize``."""

PROBE = "import socket; socket.create_connection(('1.1.1.1', 443), 5)"


def build(folder: Path) -> Path:
    """Build the wheel and return it.

    Raises
    ------
    SystemExit
        If it is too large, or lacks the pretrained backbone.
    """
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
        for name in SHIPPED:
            if archive.read(name) != (ROOT / name).read_bytes():
                raise SystemExit(f"{wheel.name}: its {name} differs from {ROOT / name}")
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.2f} MB, {len(files)} files; the largest:")
    for file in sorted(files, key=lambda file: -file.compress_size)[:5]:
        print(f"  {file.compress_size / 1e6:7.3f} MB  {file.filename}")
    if size >= LARGEST:
        raise SystemExit(f"{wheel.name}: {size:,} bytes; the limit is {LARGEST:,.0f}")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a fresh virtual environment and return the folder of its executables."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    subprocess.run([str(programs / "python"), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    return programs


def cut_off(folder: Path, programs: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a prefix and an environment that run a command without a network and with an empty cache.

    Raises
    ------
    SystemExit
        If a connection succeeds nevertheless.
    """
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    environment |= {"RESERVOIR_CACHE": str(folder / "cache")}
    prefix: tuple[str, ...] = NAMESPACE
    try:
        subprocess.run([*NAMESPACE, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        prefix = ()
        (folder / "sitecustomize.py").write_text(GUARD)
        environment |= {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
    probe = subprocess.run(
        [*prefix, "python", "-c", PROBE], env=environment, check=False, capture_output=True
    )
    if probe.returncode == 0:
        raise SystemExit("a connection succeeded, although the network should be off")
    print(f"network off by {'a namespace' if prefix else 'a guard'}")
    return prefix, environment


def main() -> None:
    """Print the size and the times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        started = time.perf_counter()
        programs = install(wheel, folder / "environment")
        print(f"pip install: {time.perf_counter() - started:.1f} s")
        prefix, environment = cut_off(folder, programs)
        empty = folder / "empty"
        empty.mkdir()
        for command in ("extract", "fit"):
            started = time.perf_counter()
            print(f"\n$ reservoir {command} digits", flush=True)
            subprocess.run(
                [*prefix, "reservoir", command, "digits"], cwd=empty, env=environment, check=True
            )
            print(f"reservoir {command} digits: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
