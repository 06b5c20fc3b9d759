#!/usr/bin/env bash
# Installs CUDA 13.0's compiler and headers from PyPI wheels into .toolchain (about 400 MB). With CUDA_HOME set, or a
# .toolchain that is already complete, there is nothing to do. Prints nothing but errors.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -n "${CUDA_HOME:-}" ] && exit 0

stamp=.toolchain/complete
wheels="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85"
[ "$(cat $stamp 2>/dev/null)" = "$wheels" ] && exit 0

command -v python3 >/dev/null || { echo "toolchain: python3 with pip is needed, or set CUDA_HOME" >&2; exit 1; }
rm -rf .toolchain
# shellcheck disable=SC2086
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target .toolchain $wheels
test -x .toolchain/nvidia/cu13/bin/nvcc || { echo "toolchain: the wheels brought no nvcc" >&2; exit 1; }
echo "$wheels" > $stamp
