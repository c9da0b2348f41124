"""`two_ranks` over NCCL on two GPUs: the losses have the base's bits, and the patched step does not wait.

python nccl_two_ranks.py --base <base source root> --patched <patched source root> [--json FILE]
"""

from __future__ import annotations

import sys

import two_ranks

if __name__ == "__main__":
    sys.argv[1:1] = ["--backend", "nccl"]
    sys.exit(two_ranks.main())
