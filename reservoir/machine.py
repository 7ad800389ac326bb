"""What is known of this machine without torch: its memory, a GPU, and the precision in which it multiplies faster.

The precision is part of the cache key, so nothing is timed: on a busy machine a trial can give either answer.

| instruction sets | processor | precision | measured time of a product in bfloat16, relative to float32 |
|---|---|---|---|
| AMX (``amx_tile``, ``amx_bf16``) | Intel since Sapphire Rapids | bfloat16 | not measured here |
| ``avx512_bf16`` without AMX | AMD since Zen 4 | bfloat16 | 0.22 on an EPYC of family 26; not measured on family 25 |
| ``avx512_bf16`` without AMX | Intel | float32 | 1.6 on a Xeon whose tiles are disabled |
| ``bf16`` of ARM | any | bfloat16 | not measured |
| others | any | float32 | bfloat16 would be emulated |

On Linux the instruction sets are those of ``/proc/cpuinfo``, which leaves out what the kernel or a virtual
machine has disabled. Other systems count as having none.
"""

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
"""Instruction sets without which oneDNN, torch's library for products, converts bfloat16 to float32."""

TILES = {"amx_tile", "amx_bf16"}
"""Instruction sets of AMX."""


def may_have_gpu() -> bool:
    """Return whether torch may find a GPU here; on Linux it finds none without a driver."""
    if sys.platform != "linux":  # not known without torch
        return True
    has_amd_driver = Path("/dev/kfd").exists()
    if has_amd_driver:
        return True
    try:
        ctypes.CDLL("libcuda.so.1")  # NVIDIA's driver, which torch loads by the same name
    except OSError:
        return False
    return True


def faster_precision() -> str:
    """Return ``bfloat16`` if this processor multiplies it natively and faster, else ``float32`` (table above)."""
    vendor, flags = _vendor_and_flags()
    flags -= _disabled_in_onednn()
    has_fast_avx512 = vendor == "AuthenticAMD" and "avx512_bf16" in flags
    is_fast_on_x86 = flags >= AVX512 and (flags >= TILES or has_fast_avx512)
    is_fast_on_arm = "bf16" in flags
    return "bfloat16" if is_fast_on_x86 or is_fast_on_arm else "float32"


def _vendor_and_flags() -> tuple[str, set[str]]:
    """Return the vendor and the instruction sets of the first processor; both are empty if the system has no list."""
    fields: dict[str, str] = {}
    if CPUINFO.is_file():
        with CPUINFO.open() as lines:
            for line in lines:
                if not line.strip():  # the end of the first processor; large machines list hundreds
                    break
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
    # Linux calls them flags on x86, Features on ARM.
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("vendor_id", ""), set(flags.split())


def _disabled_in_onednn() -> set[str]:
    """Return the instruction sets of `TILES` and ``avx512_bf16`` that a variable of oneDNN forbids it to use."""
    # The variable, of which DNNL_... is the older name, is the highest instruction set that oneDNN may use.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
    limit = limit.upper()
    if limit in ("ALL", "DEFAULT") or "AMX" in limit:
        return set()
    # Every limit below AMX forbids its tiles.
    has_bfloat16 = limit in ("AVX512_CORE_BF16", "AVX512_CORE_FP16") or limit.startswith("AVX10")
    return TILES if has_bfloat16 else TILES | {"avx512_bf16"}


def free_memory() -> int:
    """Return how many bytes this process can still use, by the tightest of the limits that this system tells.

    They are the memory of the machine, what is available of it, the limits of the process, and that of its container.
    """
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, KeyError, ValueError):  # only Linux has these files
        machine = _sizes_in_file(Path("/proc/meminfo"))
        process = _sizes_in_file(Path("/proc/self/status"))
        free.append(machine["MemAvailable"])
        for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft_limit, _ = resource.getrlimit(limit)
            if soft_limit != resource.RLIM_INFINITY:
                free.append(soft_limit - process[used])
    with suppress(OSError, ValueError):  # without a limit, memory.max holds "max", which is no number
        container = Path("/sys/fs/cgroup")
        container_limit = int((container / "memory.max").read_text())
        container_used = int((container / "memory.current").read_text())
        free.append(container_limit - container_used)
    return max(0, min(free))


def _sizes_in_file(path: Path) -> dict[str, int]:
    """Return the sizes in a file of the kernel by name, in bytes; its lines are such as ``VmSize:  1024 kB``."""
    sizes: dict[str, int] = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if words[-1:] == ["kB"]:  # other lines hold no sizes
            name, number = words[0].removesuffix(":"), words[1]
            sizes[name] = int(number) * 1024
    return sizes
