#!/bin/sh
# Links the drop-in shared libraries from the Rust static libraries: target/<profile>/lib/libibverbs.so.1 and librdmacm.so.1,
# each with a symbolic link without the version: NCCL and others open `libibverbs.so` first.
# usage: scripts/build-libs.sh [debug|release|quick]
#
# Rust's own cdylib cannot give symbols versions, and several versions of one name need an assembler: the tables in
# crates/frontends/<library>/abi are turned into a linker version script and a list of `.symver` aliases.
set -eu
profile=${1:-release}
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $profile in
debug) flags= ;;
release) flags=--release ;;
quick) flags="--profile quick" ;;
*) echo "usage: $0 [debug|release|quick]" >&2; exit 2 ;;
esac
out=$target/$profile/lib
mkdir -p "$out/abi"

# newer OUTPUT INPUT...: whether OUTPUT exists and is newer than every INPUT.
newer() {
    o=$1; shift
    [ -e "$o" ] || return 1
    for i; do [ "$o" -nt "$i" ] || return 1; done
}

# link CRATE SONAME ARCHIVE [LIBRARY...]: LIBRARY is a library linked before, on which the new one depends.
link() {
    abi=$root/crates/frontends/$1/abi
    name=$1
    lib=$out/$2
    archive=$target/$profile/$3
    shift 3
    awk=$root/scripts/symbols.awk
    if newer "$lib" "$archive" "$@" "$abi"/*.txt "$awk" "$0"; then return; fi
    awk -v want=map -f "$awk" "$abi"/*.txt >"$out/abi/$name.map"
    awk -v want=asm -f "$awk" "$abi"/*.txt >"$out/abi/$name.S"
    ${CC:-cc} -shared -o "$lib.$$" -Wl,-soname,"${lib##*/}" -Wl,--version-script="$out/abi/$name.map" -Wl,-z,now -Wl,-z,relro \
        -Wl,-z,nodelete -Wl,--gc-sections -Wl,-z,noexecstack -Wl,--no-undefined \
        "$out/abi/$name.S" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive "$@" -lgcc_s -lpthread -ldl -lm -lc
    mv "$lib.$$" "$lib"
}

# unversioned SONAME: makes the link without version.
unversioned() {
    ln -sf "$1" "$out/${1%.1}"
}

cd "$root"
cargo build $flags -p burst-ibverbs
link ibverbs libibverbs.so.1 libburst_ibverbs.a
unversioned libibverbs.so.1
cargo build $flags -p burst-rdmacm
link rdmacm librdmacm.so.1 libburst_rdmacm.a "$out/libibverbs.so.1"
unversioned librdmacm.so.1

# The library with a host for programs that are their own engine: opened by path, so no versions of symbols.
cargo build $flags -p burst-inprocess ${INPROCESS_FEATURES:-}
built=$target/$profile/libburst_inprocess.so
if ! newer "$out/libburst-inprocess.so.1" "$built"; then
    cp "$built" "$out/libburst-inprocess.so.1.$$"
    mv "$out/libburst-inprocess.so.1.$$" "$out/libburst-inprocess.so.1"
fi
