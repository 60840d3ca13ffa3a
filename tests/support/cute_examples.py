"""NVIDIA's CuTe DSL examples on the emulated GPUs, unmodified: ``triton-ext run`` of each script.

``python tests/support/cute_examples.py [--cutlass URL_OR_FOLDER] [--only REGEX]``. They check their
own results. It ends with status 1 if one ends otherwise than `EXAMPLES` says, and with 0, and a
word, where the scripts or the DSL cannot be had.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from sites import CHECKOUT
from upstream_suites import checkout

CUTLASS = "https://github.com/NVIDIA/cutlass.git"
REVISION = "7107b05535f8977f5ecb9d01ee203205b1fd9bc4"  # August 2026; with the DSL 4.8.1
FOLDER = "examples/python/CuTeDSL"
GEMM = "cute/blackwell/kernel"
HOPPER = "cute/hopper/kernel"
ATTENTION = f"{GEMM}/attention"
TUTORIAL = "cute/blackwell/tutorial"
SMALL = "--mnkl 256,256,256,1"
NO_LD = "has not executed tcgen05.wait::ld"
EXAMPLES = [
    *((f"{TUTORIAL}/tutorial_gemm/fp16_gemm_{n}.py", "--mnk 512,512,128", "")
      for n in ("0", "1", "2", "3", "3_1", "4", "5", "6")),
    (f"{GEMM}/dense_gemm/dense_gemm.py", "", ""),
    (f"{GEMM}/dense_gemm/dense_gemm_persistent.py", "", ""),
    (f"{GEMM}/dense_gemm/dense_gemm_persistent_dynamic.py", "", ""),
    (f"{GEMM}/dense_gemm/dense_gemm_persistent_prefetch.py", "", ""),
    (f"{GEMM}/dense_gemm/dense_gemm_software_pipeline.py", "", ""),
    (f"{GEMM}/dense_gemm/dense_gemm_alpha_beta_persistent.py", "", ""),
    (f"{GEMM}/blockscaled_gemm/dense_blockscaled_gemm_persistent.py", "--skip_ref_check", ""),
    (f"{GEMM}/blockscaled_gemm/dense_blockscaled_gemm_persistent_amax.py", "", ""),
    (f"{GEMM}/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py", "", ""),
    (f"{GEMM}/grouped_gemm/grouped_gemm.py", "", ""),
    (f"{GEMM}/mixed_input_gemm/mixed_input_gemm.py", "", ""),
    (f"{GEMM}/rmsnorm/rmsnorm.py", "--M 64 --N 1024", ""),
    (f"{ATTENTION}/mamba2_ssd/mamba2_ssd.py", "--gbehcdln 1,2,1,2,4,64,128,128", ""),
    (f"{ATTENTION}/mla/mla_decode_fp16.py", "", ""),
    (f"{ATTENTION}/mla/mla_decode_fp8.py", "", ""),
    (f"{GEMM}/blockwise_gemm/blockwise_gemm.py", "", NO_LD),
    (f"{GEMM}/blockwise_gemm/contiguous_grouped_gemm.py", "", NO_LD),
    (f"{GEMM}/blockwise_gemm/masked_grouped_gemm.py", "", "in no allocation of this launch"),
    (f"{ATTENTION}/fmha/fmha.py", "", "may still be read by"),
    (f"{ATTENTION}/fmha/fmha_bwd.py", "--s_q 256 --s_k 256 --h_q 2 --h_k 2",
     "is freed, and was written by the tensor core"),
    (f"{ATTENTION}/mixed_input_fmha/mixed_input_fmha_prefill_d256.py", "",
     "is freed, and may still be read"),
    (f"{ATTENTION}/mixed_input_fmha/mixed_input_fmha_prefill_d512.py", "", "may still be read by"),
    (f"{ATTENTION}/mixed_input_fmha/mixed_input_fmha_decode.py", "",
     "n = 8: must be one of"),
    (f"{HOPPER}/dense_gemm/dense_gemm.py", SMALL, ""),
    (f"{HOPPER}/dense_gemm/dense_gemm_persistent.py", SMALL, ""),
    (f"{HOPPER}/dense_gemm/dense_gemm_fp8_2xacc.py", SMALL, ""),
    (f"{HOPPER}/dense_gemm/dense_gemm_fp8_gelu_persistent.py", SMALL, ""),
    (f"{HOPPER}/attention/fmha.py", "--q_shape 1,128,1,64 --k_shape 1,128,1,64",
     "the block ends, and the thread that issued this copy"),
]  # fmt: skip
"""Scripts, their arguments, and what the fault that ends them says; the reasons are in
benchmarks/notes/emulator.md."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cutlass", default=CUTLASS, help="a git repository, or a checkout")
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    options = parser.parse_args()
    home = Path(options.cutlass)
    try:
        if not (home / FOLDER).is_dir():
            home = CHECKOUT / "build/cutlass"
            checkout(options.cutlass, REVISION, home, [FOLDER])
        dsl = importlib.util.find_spec("nvidia_cutlass_dsl")
    except OSError as error:
        print(f"skipped: the examples of {options.cutlass} cannot be had: {error}")
        return 0
    if dsl is None:
        print("skipped: nvidia-cutlass-dsl is not installed")
        return 0
    bad, folder = False, (home / FOLDER).resolve()
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    for script, arguments, fault in EXAMPLES:
        if not options.only.search(script):
            continue
        began, arch = time.monotonic(), "sm_90" if script.startswith(HOPPER) else "sm_100"
        done = subprocess.run(
            [Path(sys.executable).parent / "triton-ext", "run", "--emulate", arch, "--timeout",
             "900", script, *arguments.split()],
            capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        said = re.findall(r"^triton-ext: (\w+(?:Fault|Error|Read).*)", done.stderr, re.M)
        right = done.returncode == 0 if not fault else any(fault in each for each in said)
        bad |= not right
        what = (said or [f"status {done.returncode}"])[-1] if done.returncode else "right"
        seconds = f"{time.monotonic() - began:.0f} s"
        print(f"{'' if right else 'NOT EXPECTED '}{arch} {script} ({seconds}): {what}", flush=True)
        if not right:
            print(done.stderr[-1500:])
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
