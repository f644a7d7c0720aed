"""The CI steps of deploy/ci, executed as a runner does it: each step a shell of its own, variables by files, no root and no sudo."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import lab
import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is missing: scripts/install-deps installs it")

ROOT = Path(__file__).resolve().parents[1]
BUILD = lab.build_directory()
UNPRIVILEGED = 65534
#: What a later step of the job runs: a program that knows nothing of Burst.
PROGRAM = "ib_write_bw -d burst0 -F -n 200 > server.txt 2>&1 & server=$!; until ib_write_bw -d burst0 -F -n 200 127.0.0.1 || ! kill -0 $server; do sleep 0.2; done; wait $server"


class Runner:
    """A job in a directory and a network namespace of its own, as a user without rights."""

    def __init__(self, wheel):
        self.place = Path(tempfile.mkdtemp(prefix="burst-job-", dir="/tmp"))
        self.wheel = shutil.copy(wheel, self.place)
        for name in ("temp", "work"):
            (self.place / name).mkdir()
        for path in (self.place, *self.place.rglob("*")):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        self.variables, self.path, self.outputs = {}, ["/usr/bin", "/bin", "/usr/sbin", "/sbin"], {}
        keep = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]
        self.keeper = subprocess.Popen(keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.keeper.stdout.readline() == b"up\n"

    def shell(self, script, name="step", step_id=None, **variables):
        """One step: bash with -e, and what it leaves in the runner's files."""
        files = {}
        for kind in ("ENV", "PATH", "OUTPUT", "STEP_SUMMARY"):
            files[kind] = self.place / "temp" / f"{name}.{kind}"
            files[kind].write_text("")
            os.chown(files[kind], UNPRIVILEGED, UNPRIVILEGED)
        env = {
            "HOME": str(self.place), "RUNNER_TEMP": str(self.place / "temp"), "GITHUB_ACTIONS": "true", "PIP_NO_INDEX": "1", **self.variables, **variables,
            **{f"GITHUB_{kind}": str(file) for kind, file in files.items()}, "PATH": ":".join(self.path),
        }
        enter = ["nsenter", "-t", str(self.keeper.pid), "--net", "setpriv", "--reuid", str(UNPRIVILEGED), "--regid", str(UNPRIVILEGED), "--clear-groups"]
        done = subprocess.run(
            [*enter, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], env=env, cwd=self.place / "work", capture_output=True, text=True,
            timeout=120, stdin=subprocess.DEVNULL,
        )
        self.variables |= dict(line.split("=", 1) for line in files["ENV"].read_text().splitlines())
        self.path = [*reversed(files["PATH"].read_text().splitlines()), *self.path]
        if step_id:
            self.outputs[step_id] = dict(line.split("=", 1) for line in files["OUTPUT"].read_text().splitlines())
        self.summary = files["STEP_SUMMARY"].read_text()
        return done

    def action(self, name, **inputs):
        """All steps of a composite action; its outputs, and what the last step printed."""
        text = yaml.safe_load((ROOT / "deploy" / "ci" / name / "action.yml").read_text())
        assert set(inputs) <= set(text["inputs"]), inputs
        given = {key: str(inputs.get(key, one["default"])) for key, one in text["inputs"].items()}

        def filled(value):
            value = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found.group(1)], value)
            return re.sub(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", lambda found: self.outputs[found.group(1)][found.group(2)], value)

        for step in text["runs"]["steps"]:
            # Inputs reach a script by variables only: in the script itself they would be code.
            assert "${{" not in step["run"] and step["shell"] == "bash"
            done = self.shell(step["run"], step["name"], step.get("id"), **{key: filled(value) for key, value in step.get("env", {}).items()})
            if done.returncode:
                return done, {}
        return done, {key: filled(one["value"]) for key, one in text.get("outputs", {}).items()}

    def end(self):
        self.keeper.stdin.close()
        self.keeper.wait()
        self.keeper.stdout.close()
        shutil.rmtree(self.place)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([ROOT / "scripts" / "wheel", "--build", BUILD, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture
def runner(wheel):
    one = Runner(wheel)
    yield one
    one.end()


def started(runner, **inputs):
    done, outputs = runner.action("setup-burst", package=runner.wheel, python="/usr/bin/python3", **inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    return outputs


def test_a_job_moves_bytes_and_reports(runner):
    outputs = started(runner, impair="loss=1%", capture="true")
    assert Path(outputs["library"]).name == "libibverbs.so.1" and outputs["socket"] == runner.variables["BURST_SOCKET"]
    done = runner.shell(PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert runner.shell("command -v burst").stdout.startswith(str(runner.place))
    done, _ = runner.action("report-burst", **{"fail-on": "bad_icrc,cq_overrun"})
    assert done.returncode == 0, done.stdout + done.stderr
    kept = runner.place / "work" / "burst-artifacts"
    assert sorted(path.name for path in kept.iterdir()) == ["burstd.log", "capture.log", "counters.json", "packets.pcapng", "why.txt"]
    assert "| impaired | " in runner.summary and (kept / "packets.pcapng").stat().st_size > 1000
    # Nothing of the job runs on.
    words = os.fsencode(str(runner.place))
    assert not [entry for entry in Path("/proc").glob("[0-9]*") if words in command_line(entry)]


def command_line(entry):
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_second_start_replaces_the_first(runner):
    started(runner)
    first = next((runner.place / "temp").glob("burst-ci-*/burstd.pid")).read_text()
    before = dict(runner.variables)
    started(runner)
    second = next((runner.place / "temp").glob("burst-ci-*/burstd.pid")).read_text()
    assert first != second and runner.variables == before, "variables grow"
    assert not command_line(Path("/proc") / first.strip())
    assert "burst0" in runner.shell("ibv_devices").stdout
    done, _ = runner.action("report-burst")
    assert done.returncode == 0


def test_a_counter_fails_the_job_and_is_an_annotation(runner):
    started(runner, impair="loss=2%")
    assert runner.shell(PROGRAM).returncode == 0
    done, _ = runner.action("report-burst", **{"fail-on": "impaired,nonsense"})
    assert done.returncode == 1, done.stdout
    assert re.search(r"^::error title=Burst::impaired is \d+, and must be 0$", done.stdout, re.M), done.stdout
    assert "::error title=Burst::there is no counter 'nonsense'" in done.stdout


def test_what_cannot_be_is_one_sentence(runner):
    done, _ = runner.action("setup-burst", package=runner.wheel, python="/usr/bin/python3", port="udp:dev=none")
    assert done.returncode == 125 and re.fullmatch(r"burst: burstd does not serve: .*none.*\n", done.stderr), done.stdout + done.stderr


def test_a_shell_evaluates_what_start_prints(runner):
    """As the GitLab job does."""
    text = yaml.safe_load((ROOT / "deploy" / "ci" / "gitlab" / "burst.yml").read_text())[".burst"]
    job = "\n".join([*text["before_script"], "ibv_devices"]).replace("/tmp/burst-venv", str(runner.place / "venv"))
    done = runner.shell(job, **{**text["variables"], "BURST_PACKAGE": runner.wheel, "BURST_FAULTS": "delay=1us"})
    assert done.returncode == 0 and "burst0" in done.stdout, done.stdout + done.stderr
    after = "\n".join(text["after_script"]).replace("/tmp/burst-venv", str(runner.place / "venv"))
    assert runner.shell(after).returncode == 0
    assert (runner.place / "work" / text["artifacts"]["paths"][0] / "counters.json").exists()
