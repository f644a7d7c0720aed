"""A bad and a good sample for each rule. A rule that finds nothing in its bad sample, or something in its good one, is itself at fault."""

from rules import RULES
from tree import Sample

LIB = "crates/base/a/src/lib.rs"
OTHER = "crates/base/b/src/lib.rs"
TEST = "crates/base/a/tests/t.rs"


def package(storey, crate, *dependencies, kind=None, above="crates/"):
    return {
        "name": crate,
        "manifest_path": f"/r/{above}{storey}/{crate}/Cargo.toml",
        "dependencies": [{"name": name, "kind": kind} for name in dependencies],
    }


def untested(doctest):
    """A library whose manifest says whether its documentation is tested."""
    return package("base", "a") | {"targets": [{"kind": ["lib"], "doctest": doctest}, {"kind": ["bin"], "doctest": False}]}


def workspace(*packages, neighbours=()):
    return {"packages": packages, "metadata": {"storeys": {"order": ["base", "bytes"], "neighbours": list(neighbours)}}}


def rust(text, path=LIB):
    return Sample({path: text})


def function(lines):
    return "//! A sample.\nfn long() {\n" + "    step();\n" * (lines - 2) + "}\n"


def crate(files):
    return Sample({f"crates/base/a/src/{name}": text for name, text in files.items()})


def ring(count, through_root):
    """Modules that import each other in a circle, directly or by names that lib.rs exports again."""
    files = {"lib.rs": "".join(f"mod m{i};\npub use m{i}::T{i};\n" for i in range(count))}
    for i in range(count):
        onward = (i + 1) % count
        path = f"T{onward}" if through_root else f"m{onward}::T{onward}"
        files[f"m{i}.rs"] = f"use crate::{path};\npub struct T{i};\n"
    return crate(files)


CHAIN = {
    "lib.rs": "mod a;\nmod b;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\npub use a::A;\n",
    "a.rs": "use crate::b::{self, B};\npub struct A;\n",
    "b.rs": "pub struct B;\n",
}

RUN = '{"date": "2026-11-28T00:00:00", "commit": "1", "machine": {"cpu": "c", "cpus": 2, "kernel": "6.1.0", "memory_gib": 1}, "figures": {}}\n'



def paper(*fields, state="number"):
    """A table with one row, and what it names."""
    row = ['[[figure]]', 'id = "1"', 'shows = "x"', f'state = "{state}"', 'command = "experiments/x/run part"', *fields]
    files = {"experiments/papers/srnic.toml": "\n".join(['title = "t"', 'source = "s"', *row]), "experiments/x/run": "parts: part\n"}
    return Sample(files | {"docs/a.md": "# A\n12 and 7.5\n## B\n3\n"})


def list_of(rule, *items):
    return {f"scripts/tidy.d/exceptions/{rule}.txt": "# A sample.\n" + "".join(f"{item}\n" for item in items)}


def impls(files, *listed):
    """A crate whose type T is defined in a.rs."""
    text = {"lib.rs": "mod a;\nmod b;\n", "a.rs": "mod c;\npub struct T;\n"}
    named = {f"crates/base/a/src/{name}": content for name, content in (text | files).items()}
    return Sample(named | list_of("impl_outside", *listed))


def branches(count, limit=None):
    """A function of a complexity of `count`."""
    text = "//! A sample.\nfn f(x: u8) {\n" + "    if x == 1 {}\n" * (count - 1) + "}\n"
    return Sample({LIB: text} | list_of("complexity", *([f"{LIB} f {limit}"] if limit else [])))


def asserting(count, lines, least=None):
    body = "    assert!(true);\n" * count + "    step();\n" * (lines - count - 3)
    text = "//! A sample.\nfn f() {\n" + body + "}\n"
    listed = list_of("assertion_density", f"crates/bytes/shm {least}") if least else {}
    return Sample({"crates/bytes/shm/src/lib.rs": text} | listed)


MIXED = """//! A sample.
impl<T: ?Sized> A for S<T> {
    fn f(x: &&str) -> Option<u8> {
        let Some(y) = g()? else { return None };
        let z = if y == 1 && x == "a" || h(|| 2, move || 3) { 1 } else { 2 };
        for i in 0..3 {}
        while z > 1 {}
        fn inner() { if a {} }
        match z {
            1 | 2 => 1,
            3 if y > 1 => 2,
            _ => 3,
        }
    }
}
"""

CALLED = {
    "lib.rs": "".join(f"mod m{i};\n" for i in range(9)),
    **{f"m{i}.rs": f"use crate::m{i + 1}::T{i + 1};\npub struct T{i} {{ pub next: Box<T{i + 1}> }}\n" for i in range(8)},
}


def growing(fields, *listed, more=""):
    """A struct of the host with fields, and the list of containers."""
    body = "".join(f"    {field},\n" for field in fields)
    text = f"//! A sample.\npub struct S<T> {{\n{body}}}\nconst ROOM: usize = 1;\ntype Numbers<T> = HashMap<u32, T>;\n{more}"
    rows = 'resources! {\n    Qp, "qps", "queue pairs", [];\n}\n'
    names = {"crates/hosts/host/src/lib.rs": text, "crates/base/ledger/src/resource.rs": rows}
    return Sample(names | {"scripts/tidy.d/containers.txt": "# A sample.\n" + "".join(f"{line}\n" for line in listed)})


#: (rule, sample, how many violations it has)
SAMPLES = [
    ("storeys", Sample({}, workspace(package("base", "low", "high"), package("bytes", "high"))), 1),
    ("storeys", Sample({}, workspace(package("bytes", "a", "b"), package("bytes", "b"))), 1),
    ("storeys", Sample({}, workspace(package("bytes", "a"), package("bytes", "b"), neighbours=["a -> b"])), 1),
    ("storeys", Sample({}, workspace(package("attic", "a"))), 1),
    ("storeys", Sample({}, workspace(package("bytes", "a"), package("experiments", "x", "a", above=""))), 0),
    ("storeys", Sample({}, workspace(package("bytes", "a", "x"), package("experiments", "x", above=""))), 1),
    ("storeys", Sample({}, workspace(package("bytes", "a", "b", "low", "serde"), package("bytes", "b"), package("base", "low"), neighbours=["a -> b"])), 0),
    ("storeys", Sample({}, workspace(package("base", "low", "high", kind="dev"), package("bytes", "high"))), 0),
    ("function_length", rust(function(71)), 1),
    ("function_length", rust(function(70)), 0),
    ("function_length", rust('//! A sample.\nfn f(b: u8) {\n    let _ = ("}", \'}\', b\'{\', r#"}"{}"#, "\\"}");\n' + "    // }\n" * 66 + "}\n"), 0),
    ("function_length", rust("//! A sample.\nfn f<'a>(x: &'a [u8; 2]) -> &'a u8\nwhere\n    u8: Copy,\n{\n" + "    g('\\'');\n" * 66 + "}\n"), 1),
    ("function_length", rust("//! A sample.\ntrait T {\n    fn f(&self);\n" + "    const A: u8 = 0;\n" * 90 + "}\n"), 0),
    ("file_length", rust("//! A sample.\n" * 801), 1),
    ("file_length", Sample({"tests/t.py": "x\n" * 801}), 1),
    ("file_length", rust("//! A sample.\n" * 800), 0),
    ("comment_width", rust("//! A sample.\nlet x = 1; // " + "w" * 120 + "\n"), 1),
    ("comment_width", rust("//! A sample.\n/*\n" + "w" * 131 + "\n*/\n"), 1),
    ("comment_width", rust('//! A sample.\nlet x = "' + "w" * 140 + '";\n// ' + "w" * 127 + "\n"), 0),
    ("abstract", rust("// A sample.\n"), 1),
    ("abstract", rust("#![no_std]\n//! A sample.\n"), 1),
    ("abstract", rust("//! A sample.\n"), 0),
    ("module_table", rust("//! A sample.\n//! | module | what |\n//! |---|---|\n//! | [`gone`] | x |\n\nmod here;\n"), 2),
    ("module_table", rust("//! A sample.\n//! | module | what |\n//! |---|---|\n//! | `a`, [`b`] | `c` |\n\nmod a;\npub mod b;\n#[cfg(test)]\nmod tests;\n"), 0),
    ("unique_types", Sample({LIB: "struct A;\n", OTHER: "enum A {}\n"}), 2),
    ("unique_types", rust("struct A;\nmod x {\n    struct A;\n}\n"), 2),
    ("unique_types", rust("#[cfg(unix)]\nstruct A;\nstruct A;\n"), 2),
    ("unique_types", rust("#[cfg(unix)]\nstruct A;\n#[cfg(not(unix))]\nstruct A;\ntrait T {\n    type B;\n}\nimpl T for A {\n    type B = u8;\n}\n"), 0),
    ("unique_types", rust("struct A;\n#[cfg(test)]\nmod tests {\n    struct A;\n}\nfn f() {\n    struct A;\n}\n// struct A;\nmacro_rules! m {\n    () => { struct A; };\n}\n"), 0),
    ("unique_types", Sample({LIB: "struct A;\n", TEST: "struct A;\n"}), 0),
    ("unique_types", crate({"lib.rs": "#[cfg(test)]\nmod world;\nstruct A;\n", "world.rs": "struct A;\n"}), 0),
    ("unique_types", crate({"lib.rs": "#[cfg(x)]\nmod one;\n#[cfg(not(x))]\n#[path = \"two.rs\"]\nmod one;\n", "one.rs": "struct A;\n", "two.rs": "struct B;\n"}), 0),
    ("safety", rust("fn f() {\n    let a = 1;\n    unsafe { g() }\n}\n"), 1),
    ("safety", rust("// SAFETY: another's.\nfn f() {\n    unsafe { g() }\n}\n"), 1),
    ("safety", rust("fn f() {\n    // SAFETY: of the first.\n    unsafe { g() };\n    unsafe { g() };\n}\n"), 1),
    ("safety", rust("struct A;\nunsafe impl Send for A {}\n"), 1),
    ("safety", rust("/// Does it.\npub unsafe fn f() {}\n"), 1),
    ("safety", rust('unsafe extern "C" {\n    fn f();\n}\n'), 1),
    ("safety", rust("fn f() {\n    // SAFETY: alive.\n    let a = if b { 0 } else { unsafe { g() } };\n    let c = S {\n        // SAFETY: alive.\n        d: unsafe { g() },\n    };\n    // SAFETY: alive.\n    let S { d } = *unsafe { h() };\n}\n"), 0),
    ("safety", rust('// SAFETY: plain data.\nunsafe impl Send for A {}\n/// Does it.\n///\n/// # Safety\n/// Live.\n#[inline]\npub unsafe fn f() {}\nunsafe fn g() {}\n#[unsafe(no_mangle)]\nfn h(x: unsafe fn(u8)) {}\nlet s = "unsafe { }";\n'), 0),
    ("safety", rust("//! A sample.\n//!\n//! SAFETY: of all blocks: memory of this test.\nfn f() {\n    unsafe { g() }\n}\n", TEST), 0),
    ("doc_tests", Sample({LIB: "//! A sample.\n//!\n//! ```no_run\n//! f();\n//! ```\n"}, workspace(untested(False))), 1),
    ("doc_tests", Sample({LIB: "//! A sample.\n//! ```text\n//! a\n//! ```\n/// ```\n/// f();\n/// ```\nfn f() {}\n"}, workspace(untested(False))), 1),
    ("doc_tests", Sample({LIB: "//! A sample.\n//! ```\n//! f();\n//! ```\n", OTHER: "//! ```\n//! f();\n//! ```\n"}, workspace(untested(True))), 0),
    ("doc_tests", Sample({LIB: "//! A sample.\n//! ```text\n//! a\n//! ```\n", OTHER: "//! ```\n//! f();\n//! ```\n"}, workspace(untested(False))), 0),
    ("circles", ring(9, through_root=False), 1),
    ("circles", ring(9, through_root=True), 1),
    ("circles", ring(8, through_root=True), 0),
    ("circles", crate(CHAIN), 0),
    ("circles", crate(CALLED | {"m8.rs": "pub struct T8;\nimpl T8 {\n    fn f(x: &T0) { let y = &x.next; y.next.only_there(); }\n}\n", "m2.rs": CALLED["m2.rs"] + "impl T2 {\n    fn only_there(&self) {}\n}\n"}), 0),
    ("circles", crate(CALLED | {"m8.rs": "pub struct T8;\nimpl T8 {\n    fn f(x: u8) { x.only_there(); }\n}\n", "m0.rs": CALLED["m0.rs"] + "impl T0 {\n    fn only_there(&self) {}\n}\n"}), 1),
    ("circles", crate(CALLED | {"m8.rs": "pub struct T8;\nimpl T8 {\n    fn f(x: u8) { x.reset(); }\n}\n", "m0.rs": CALLED["m0.rs"] + "impl T0 {\n    fn reset(&self) {}\n}\n"}), 0),
    ("circles", crate({f"m{i}.rs": f"pub struct T{i} {{ pub next: Option<T{(i + 1) % 9}> }}\nimpl T{i} {{\n    fn f{i}(&self) {{ self.next.f{(i + 1) % 9}(); }}\n}}\n" for i in range(9)} | {"lib.rs": CALLED["lib.rs"]}), 1),
    ("circles", Sample({f"crates/base/a/src/{n}": t for n, t in CALLED.items()} | {"crates/base/a/src/m8.rs": "use crate::m0::T0;\npub struct T8;\n"} | list_of("circles", "crates/base/a 9")), 0),
    ("impl_outside", impls({"b.rs": "impl T {\n    fn f(&self) {}\n}\n"}), 1),
    ("impl_outside", impls({"b.rs": "use crate::a::T;\nimpl<'a, X: Fn() -> u8> From<X> for T\nwhere\n    X: Copy,\n{\n    fn f(&self) {}\n}\n"}), 1),
    ("impl_outside", impls({"a.rs": "mod c;\npub struct T;\nimpl T {\n    fn f(&self) {}\n}\n", "a/c.rs": "impl T {\n    fn g() -> impl Copy {}\n}\n", "b.rs": "impl Foreign for u8 {\n    fn f(&self) {}\n}\n"}), 0),
    ("impl_outside", impls({"b.rs": "impl T {\n    fn f(&self) {}\n}\n#[cfg(test)]\nmod tests {\n    impl T {\n        fn g() {}\n    }\n}\n"}, "crates/base/a/src/b.rs T"), 0),
    ("impl_outside", Sample({LIB: "mod b;\nstruct T;\n", "crates/base/a/src/b.rs": "impl T {\n    fn f() {}\n}\n"}), 1),
    ("complexity", branches(16), 1),
    ("complexity", branches(15), 0),
    ("complexity", branches(17, 16), 1),
    ("complexity", branches(17, 17), 0),
    ("complexity", Sample({LIB: MIXED}), 0),
    ("complexity", Sample({LIB: MIXED.replace("while z", "if b {}\n" * 5 + "while z")}), 1),
    ("complexity", Sample({LIB: MIXED.replace("while z", "if b {}\n" * 4 + "while z")}), 0),
    ("parameters", rust("//! A sample.\nimpl A {\n    fn f(&self, a: B<u8, u8>, (b, c): (u8, u8), d: &dyn Fn(u8, u8), e: [u8; 2]) {}\n}\n"), 1),
    ("parameters", rust('//! A sample.\nimpl A {\n    fn f(&self, a: B<u8, u8>, b: u8, d: &dyn Fn(u8, u8) -> u8, e: [u8; 2]) {}\n}\nunsafe extern "C" fn c(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) {}\n'), 0),
    ("assertion_density", asserting(7, 1000), 1),
    ("assertion_density", asserting(8, 1000), 0),
    ("assertion_density", asserting(1, 1000, 1), 0),
    ("assertion_density", asserting(1, 1000, 1.1), 1),
    ("commit_size", Sample({}, sizes=[("1", 501, "Some text.\nWhy: none.\n")]), 1),
    ("commit_size", Sample({}, sizes=[("1", 500, ""), ("2", 5000, "Text.\n\nSize: generated tables.\n")]), 0),
    ("subjects", Sample({}, subjects=[("1", "transport: " + "w" * 62)]), 1),
    ("subjects", Sample({}, subjects=[("1", "Fix things")]), 1),
    ("subjects", Sample({}, subjects=[("1", "transport: " + "w" * 61), ("2", "rdmacm, cm: a thing"), ("3", ".ci: a thing")]), 0),
    ("document_paths", Sample({"README.md": "see `docs/gone.md`, `tests/gone`, `a/gone.rs` and `gone.py`\n", "docs/here.md": "", LIB: ""}), 4),
    ("document_paths", Sample({LIB: "//! See docs/gone.md.\n", "x.py": "# docs/gone.md#there\n"}), 2),
    ("document_paths", Sample({"README.md": "see `docs/here.md`, `crates/`, `tests/a/b`, `a/lib.rs`, `base/a/src/lib.rs`, `t.rs`, `a/NAME.rs`\n", "docs/here.md": "", LIB: "//! docs/here.md\n", TEST: "", "tests/a/b/c": ""}), 0),
    ("links", Sample({"a.md": "[x](b.md) [y](#gone) [z](c.md#two)\n", "c.md": "# One\n"}), 3),
    ("links", Sample({"docs/a.md": "# A `b` (c)\n[x](../c.md#one) [y](#a-b-c) [z](https://x/y) [d](../docs)\n", "c.md": "```\n# no\n```\n# One\n"}), 0),
    ("document_lengths", Sample({"ARCHITECTURE.md": "word " * 1501, "README.md": "line\n" * 151}), 2),
    ("document_lengths", Sample({"ARCHITECTURE.md": "word " * 1500, "README.md": "line\n" * 150}), 0),
    ("document_index", Sample({"docs/README.md": "[a](a.md)\n", "docs/a.md": "", "docs/b.md": "", "docs/c/README.md": "", "docs/c/d.md": ""}), 3),
    ("document_index", Sample({"docs/README.md": "[a](a.md#x) [c](c/README.md)\n", "docs/a.md": "", "docs/c/README.md": "[d](d.md)", "docs/c/d.md": ""}), 0),
    ("written_parts", Sample({"ARCHITECTURE.md": "| `a` | x | 7 |\n| `b` | x | 1 |\n", LIB: "fn f() { unsafe { g() } }\n", OTHER: "#![forbid(unsafe_code)]\n"}), 1),
    ("written_parts", Sample({"ARCHITECTURE.md": "| `a` | x | 1 |\n| `b` | x | forbidden |\n", LIB: "fn f() { unsafe { g() } }\n#[cfg(test)]\nmod tests { fn f() { unsafe { g() } } }\n", OTHER: "#![forbid(unsafe_code)]\n"}), 0),
    ("written_parts", Sample({"docs/performance.md": "<!-- scripts/documents: figures -->\nold\n<!-- end -->\n", "tests/bench/history.jsonl": RUN}), 1),
    ("paper_tables", paper('page = "docs/a.md#c"', 'why = "w"'), 2),
    ("paper_tables", paper('page = "docs/a.md#b"', 'why = "w"', 'value = [{ what = "v", quote = "7.5" }]'), 1),
    ("paper_tables", paper('page = "docs/a.md"', 'why = "w"', 'value = [{ what = "v", quote = "7" }]'), 1),
    ("paper_tables", paper('page = "docs/a.md"', 'value = [{ what = "v", history = "h", ours = 3 }]'), 4),
    ("paper_tables", paper('quick = "--quick"', 'why = "w"', state="missing"), 1),
    ("paper_tables", paper(state="none"), 2),
    ("paper_tables", paper('page = "docs/a.md#a"', 'why = "w"', 'value = [{ what = "v", quote = "7.5" }]'), 0),
    ("variables", Sample({LIB: 'const A: &str = "BURST_A";\n', "docs/configuration.md": "`BURST_B`\n", "scripts/x": 'echo "$BURST_C"\n'}), 3),
    ("variables", Sample({LIB: '// "BURST_Z"\nconst A: &str = "BURST_A";\n', TEST: 'f("BURST_C")', "docs/configuration.md": "| `BURST_A` |\n", "CONTRIBUTING.md": "`BURST_C`\n"}), 0),
    ("containers", growing(["a: Vec<u8>", "pub b: Option<HashMap<u32, T>>"]), 2),
    ("containers", growing(["a: Vec<u8>"], "hosts/host S: a = row pds", "hosts/host S: b = most LIMIT", "hosts/host S = turn"), 4),
    ("containers", growing(["a: Vec<u8>", "b: BTreeSet<T>", "c: u8"], "hosts/host S: a = row qps", "hosts/host S: b = most ROOM"), 0),
    ("containers", growing(["a: Numbers<u8>", "b: UrmaPool<u8>"], more="struct N(Vec<u8>);\nstatic V: Mutex<Vec<u8>> = Mutex::new(Vec::new());\n"), 4),
    ("containers", growing(["a: Numbers<u8>"], "hosts/host S: a = turn", "hosts/host N: 0 = turn", more="struct N(Vec<u8>);\nstruct M(u8);\n"), 0),
    ("words", Sample({LIB: "//! Nobody is told.\nstruct HouseGuard;\nfn has_patience() {}\n", "a.md": "A void place, a former life.\n"}), 6),
    ("words", Sample({LIB: "// news\n", "scripts/tidy.d/unclean.txt": "crates/base/a 0\n"}), 2),
    ("words", Sample({LIB: "// news\n", "scripts/tidy.d/unclean.txt": "crates/base/a 2\n"}), 1),
    ("words", Sample({LIB: '// news\nlet x = env("XDG_STATE_HOME");\n', "scripts/tidy.d/unclean.txt": "# places\ncrates/base/a 1\n"}), 0),
]  # fmt: skip


def self_test():
    """Sentences about rules that find too little or too much; none if all is well."""
    rules = {rule.__name__: rule for rule in RULES}
    faults = [f"the rule {name} has no bad sample" for name in rules if not any(n == name and wanted for n, _, wanted in SAMPLES)]
    faults += [f"the rule {name} has no good sample" for name in rules if not any(n == name and not wanted for n, _, wanted in SAMPLES)]
    for number, (name, sample, wanted) in enumerate(SAMPLES):
        found = list(rules[name](sample))
        if len(found) != wanted:
            faults.append(f"the rule {name} finds {len(found)} violations in sample {number}, which has {wanted}: {found}")
    return faults
