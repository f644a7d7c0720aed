#!/bin/sh
# Makes the libraries in target/<profile>/lib: libibverbs.so.1 and librdmacm.so.1, linked from Rust's static libraries, each with a symbolic
# link without the version, because NCCL and others open `libibverbs.so` first; libburst-inprocess.so.1; liburma.so.0,
# if the options name burst-liburma. With ports of DPDK it is in lib/dpdk, because whatever loads it needs libdpdk.
# usage: scripts/build-libs.sh [debug|release|quick [CARGO-OPTION...]]     (options: other packages to build in the same run of cargo)
#
# Cargo runs once: it unites the features of all packages of a run, so a run for each would compile what they share several times.
#
# BURST_TARGET (scripts/build-portable): built for this target, so in target/<triple>/<profile>/lib; BURST_UNWINDER is the library that has the unwinder.
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
*) echo "usage: $0 [debug|release|quick [CARGO-OPTION...]]" >&2; exit 2 ;;
esac
shift $(($# ? 1 : 0))
# The target may end with a version of glibc, which no directory has.
triple=${BURST_TARGET:-}
built=$target/${triple:+${triple%%.*}/}$profile
out=$built/lib
mkdir -p "$out/abi" "$out/dpdk"

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
    archive=$built/$3
    shift 3
    awk=$root/scripts/symbols.awk
    if newer "$lib" "$archive" "$@" "$abi"/*.txt "$awk" "$0"; then return; fi
    awk -v want=map -f "$awk" "$abi"/*.txt >"$out/abi/$name.map"
    awk -v want=asm -f "$awk" "$abi"/*.txt >"$out/abi/$name.S"
    ${CC:-cc} -shared -o "$lib.$$" -Wl,-soname,"${lib##*/}" -Wl,--version-script="$out/abi/$name.map" -Wl,-z,now -Wl,-z,relro \
        -Wl,-z,nodelete -Wl,--gc-sections -Wl,-z,noexecstack -Wl,--no-undefined \
        "$out/abi/$name.S" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive "$@" "${BURST_UNWINDER:--lgcc_s}" -lpthread -ldl -lm -lc
    mv "$lib.$$" "$lib"
}

# unversioned SONAME: makes the link without version.
unversioned() {
    ln -sf "$1" "$out/${1%.1}"
}

# opened BUILT SONAME: copies a library, if it was built, that needs no versions of symbols.
opened() {
    [ -e "$built/$1" ] || return 0
    if newer "$out/$2" "$built/$1"; then return; fi
    cp "$built/$1" "$out/$2.$$"
    mv "$out/$2.$$" "$out/$2"
}

cd "$root"
# shellcheck disable=SC2086
${CARGO:-cargo} build $flags --locked --lib -p burst-ibverbs -p burst-rdmacm -p burst-inprocess "$@"
link ibverbs libibverbs.so.1 libburst_ibverbs.a
unversioned libibverbs.so.1
link rdmacm librdmacm.so.1 libburst_rdmacm.a "$out/libibverbs.so.1"
unversioned librdmacm.so.1
opened libburst_inprocess.so libburst-inprocess.so.1
opened liburma.so liburma.so.0
opened liburma_dpdk.so dpdk/liburma.so.0
