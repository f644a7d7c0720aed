#!/bin/sh
# Links the drop-in shared libraries from the Rust static libraries: target/<profile>/lib/libibverbs.so.1 (and librdmacm.so.1
# when that crate exists). usage: scripts/build-libs.sh [debug|release]
#
# Rust's own cdylib cannot give symbols versions, and several versions of one name need an assembler: the tables in
# crates/<library>/abi are turned into a linker version script and a list of `.symver` aliases.
set -eu
profile=${1:-release}
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $profile in
debug) flags= ;;
release) flags=--release ;;
*) echo "usage: $0 [debug|release]" >&2; exit 2 ;;
esac
out=$target/$profile/lib
mkdir -p "$out/abi"

# newer OUTPUT INPUT...: whether OUTPUT exists and is newer than every INPUT.
newer() {
    o=$1; shift
    [ -e "$o" ] || return 1
    for i; do [ "$o" -nt "$i" ] || return 1; done
}

# link CRATE SONAME ARCHIVE
link() {
    abi=$root/crates/$1/abi
    archive=$target/$profile/$3
    lib=$out/$2
    if newer "$lib" "$archive" "$abi"/*.txt "$abi/symbols.awk" "$0"; then return; fi
    awk -v want=map -f "$abi/symbols.awk" "$abi/public.txt" "$abi/legacy.txt" "$abi/private.txt" >"$out/abi/$1.map"
    awk -v want=asm -f "$abi/symbols.awk" "$abi/public.txt" "$abi/legacy.txt" "$abi/private.txt" >"$out/abi/$1.S"
    ${CC:-cc} -shared -o "$lib.$$" -Wl,-soname,"$2" -Wl,--version-script="$out/abi/$1.map" -Wl,-z,now -Wl,-z,relro \
        -Wl,-z,nodelete -Wl,--gc-sections -Wl,-z,noexecstack -Wl,--no-undefined \
        "$out/abi/$1.S" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lgcc_s -lpthread -ldl -lm -lc
    mv "$lib.$$" "$lib"
}

cd "$root"
cargo build $flags -p burst-ibverbs
link ibverbs libibverbs.so.1 libburst_ibverbs.a
if [ -d "$root/crates/rdmacm/abi" ]; then
    cargo build $flags -p burst-rdmacm
    link rdmacm librdmacm.so.1 libburst_rdmacm.a
fi
