"""`make install`: a complete tree that works where it lies, manual pages without warnings, completions that complete."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import lab
import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = lab.build_directory()
PAGES = sorted((ROOT / "share" / "man").glob("man?/*"))


def install(prefix, build=BUILD, destination="", **more):
    env = dict(os.environ, PREFIX=str(prefix), DESTDIR=str(destination), BURST_BUILD=str(build), **more)
    return subprocess.run([ROOT / "scripts" / "install"], env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def installed(tmp_path):
    for name in ("liburma.so.0", "libburst-inprocess.so.1"):
        if not (BUILD / "lib" / name).exists():
            pytest.skip(f"{BUILD} has no {name}: run make build first")
    done = install(tmp_path / "usr")
    assert done.returncode == 0, done.stderr
    return tmp_path / "usr"


def test_wireshark_finds_burst_where_install_has_linked_it(tmp_path):
    """With DESTDIR the links lead to where the files will be; a relative directory is refused."""
    done = install("/usr", destination=tmp_path, WIRESHARK="/usr/lib/wireshark")
    assert done.returncode == 0, done.stderr
    place = tmp_path / "usr/lib/wireshark"
    links = {str(path.relative_to(place)): os.readlink(path) for path in place.rglob("*") if path.is_symlink()}
    assert links.pop("extcap/burst") == "/usr/bin/burst"
    assert links and all(target == f"/usr/share/burst/{name.removeprefix('plugins/')}" for name, target in links.items()), links
    assert all((tmp_path / target[1:]).exists() for target in links.values())
    if shutil.which("tshark"):
        # As a user's own directory: Wireshark lists Burst among its interfaces' programs.
        own = install(tmp_path / "own", WIRESHARK=str(tmp_path / "config"))
        assert own.returncode == 0, own.stderr
        asked = subprocess.run([tmp_path / "config/extcap/burst", "--extcap-interfaces"], capture_output=True, text=True, timeout=60)
        assert asked.returncode == 0 and asked.stdout.startswith("extcap {version="), asked.stdout + asked.stderr
    refused = install(tmp_path / "other", WIRESHARK="lib")
    assert refused.returncode == 2 and "no absolute path" in refused.stderr


def test_an_installed_burst_runs_programs_with_its_own_libraries(installed, tmp_path):
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    # The user's daemon ends soon after the program.
    env = dict(os.environ, XDG_RUNTIME_DIR=str(runtime), BURST_IDLE_EXIT="1s", BURST_SOCKET=str(runtime / "burstd.sock"), BURST_PORT="udp:dev=lo")
    env.pop("LD_LIBRARY_PATH", None)
    run = [installed / "bin" / "burst", "run", "--in-process", "--"]
    loaded = subprocess.run([*run, "ldd", shutil.which("ibv_devices")], env=env, capture_output=True, text=True, timeout=60)
    assert loaded.returncode == 0, loaded.stderr
    assert str(installed / "lib" / "burst" / "libibverbs.so.1") in loaded.stdout, loaded.stdout
    devices = subprocess.run([*run, "ibv_devices"], env=env, capture_output=True, text=True, timeout=60)
    assert devices.returncode == 0 and "burst0" in devices.stdout, devices.stdout + devices.stderr


def test_all_that_belongs_to_it_is_installed(installed):
    found = {str(path.relative_to(installed)) for path in installed.rglob("*") if not path.is_dir()}
    expected = {f"bin/{name}" for name in ("burst", "burstd", "burst-proxy", "burst-sim", "burst-switch")}
    expected |= {f"lib/burst/{name}" for name in ("libibverbs.so.1", "librdmacm.so.1", "liburma.so.0", "libburst-inprocess.so.1", "liburma.so", "burst-pair", "burst-exercise")}
    expected |= {f"share/man/{page.parent.name}/{page.name}" for page in PAGES}
    expected |= {"share/bash-completion/completions/burst", "share/zsh/site-functions/_burst", "share/fish/vendor_completions.d/burst.fish"}
    expected |= {f"share/doc/burst/{name}" for name in ("LICENSE-MIT", "README.md", "docs/running.md", "docs/decisions/form.md")}
    units = {f"lib/systemd/system/{unit}" for unit in ("burstd.service", "burstd.socket", "burst-proxy.service")}
    expected |= {*units, "lib/sysusers.d/burst.conf", "share/burst/burst.lua"}
    assert expected <= found, expected - found
    for unit, program in (("burstd", "burstd "), ("burst-proxy", "burst proxy run ")):
        text = (installed / f"lib/systemd/system/{unit}.service").read_text()
        assert f"ExecStart={installed}/bin/{program}" in text
    assert not any(path.is_symlink() and not path.exists() for path in installed.rglob("*")), "a link leads nowhere"


def test_a_package_is_staged_below_destdir(installed, tmp_path):
    done = install("/usr", destination=tmp_path / "stage")
    assert done.returncode == 0, done.stderr
    unit = (tmp_path / "stage/usr/lib/systemd/system/burstd.service").read_text()
    assert "ExecStart=/usr/bin/burstd " in unit


def test_nothing_is_installed_from_a_tree_that_is_not_built(tmp_path):
    (tmp_path / "empty").mkdir()
    done = install(tmp_path / "usr", build=tmp_path / "empty")
    assert done.returncode == 1 and "run make build first" in done.stderr
    assert not (tmp_path / "usr").exists()


@pytest.mark.skipif(not shutil.which("man"), reason="man is not installed (package man-db)")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_manual_page_has_no_warnings(page):
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page]
    env = dict(os.environ, LC_ALL="C.UTF-8", MANROFFSEQ="", MANWIDTH="80")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    text = page.read_text()
    assert ".SH NAME" in text and '"SEE ALSO"' in text
    for name, section in re.findall(r"([a-z-]+) ?\((\d)\)", text.split('"SEE ALSO"')[1].replace("\\fB", "").replace("\\fR", "").replace("\\-", "-")):
        assert any(other.name == f"{name}.{section}" for other in PAGES), f"{page.name} names {name}({section}), which is no page"


def completed(*words):
    script = f"source {ROOT}/share/completions/bash/burst; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
    script += f'_burst burst "{words[-1]}" "{words[-2]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_and_flags():
    assert completed("burst", "doc") == ["doctor"]
    assert "--in-process" in completed("burst", "run", "--in")
    assert "hunt" in completed("burst", "sim", "hu")
