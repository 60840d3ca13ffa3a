"""Write pip's installation report (stdin) as requirements with hashes.

torch is left out, as its builds for CPU and CUDA carry one version, and the index decides which of
them pip finds; so is this project itself.
"""

import json
import sys

LEFT_OUT = ("torch", "triton-layouts")

print("# Written by `make lock`: pip takes these files and no others (--require-hashes).")
for each in sorted(
    json.load(sys.stdin)["install"], key=lambda each: each["metadata"]["name"].lower()
):
    name, version = each["metadata"]["name"], each["metadata"]["version"]
    if name not in LEFT_OUT:
        sha256 = each["download_info"]["archive_info"]["hashes"]["sha256"]
        print(f"{name}=={version} \\\n    --hash=sha256:{sha256}")
