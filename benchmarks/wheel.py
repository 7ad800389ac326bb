"""Measure the size of the wheel, and run the main job from it in an empty environment without a network.

    python benchmarks/wheel.py                # takes minutes: pip installs all dependencies

Builds the wheel, installs it with pip into a fresh virtual environment, and then, with the network off and an empty
cache, runs ``reservoir extract digits`` and ``reservoir fit digits`` there. A namespace turns the network off where the
system permits one, else a guard that refuses every connection of Python, together with ``HF_HUB_OFFLINE``; the script
first checks that it is off. Goals: the wheel is under 20 MB, and both commands succeed.
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
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
        for name in SHIPPED:
            if archive.read(name) != (ROOT / name).read_bytes():
                raise SystemExit(f"{wheel.name}: its {name} is not the one of this tree")
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.2f} MB, {len(files)} files; the largest:")
    for file in sorted(files, key=lambda file: -file.compress_size)[:5]:
        print(f"  {file.compress_size / 1e6:7.3f} MB  {file.filename}")
    if size >= LARGEST:
        raise SystemExit(f"the wheel has {size:,} bytes, not under {LARGEST:,.0f}")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a fresh environment and return the environment's folder of programs."""
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
    probe = subprocess.run([*prefix, "python", "-c", PROBE], env=environment, check=False, capture_output=True)
    if probe.returncode == 0:
        raise SystemExit("the network is not off")
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
            subprocess.run([*prefix, "reservoir", command, "digits"], cwd=empty, env=environment, check=True)
            print(f"reservoir {command} digits: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
