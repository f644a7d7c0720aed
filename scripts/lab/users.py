"""Programs of several users on one host, whose daemon is root's."""

import os
import shutil
from pathlib import Path

from .fabric import Program, build_directory

ALICE, BOB = 1001, 1002
SECONDS = 60


def as_user(uid, *caps):
    """Words that run a command as a user; with `caps`, also with these capabilities."""
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    ambient = "".join(f",+{cap}" for cap in caps)
    return [*words, f"--inh-caps=-all{ambient}", *([f"--ambient-caps={ambient[1:]}"] if caps else [])]


def public_copy(place, *more):
    """Copies the build to `place`, where every user may execute it: bin/ and lib/burst/. `more`: programs beside burst and burstd,
    relative to the build directory."""
    build, place = build_directory(), Path(place)
    shutil.rmtree(place, ignore_errors=True)
    (place / "bin").mkdir(parents=True)
    (place / "lib/burst").mkdir(parents=True)
    for program in ("burst", "burstd", *more):
        shutil.copy(build / program, place / "bin" / Path(program).name)
    for path in [*build.glob("lib/lib*.so.1"), build / "lib/burst-pair", build / "lib/burst-exercise"]:
        shutil.copy(path, place / "lib/burst" / path.name)
    os.chmod(place, 0o755)
    return place


class Users:
    """Starts programs of users on a host, from a public copy of the build."""

    def __init__(self, host, place):
        self.host, self.place, self.started = host, place, []

    def environment(self, **env):
        return {**os.environ, "LD_LIBRARY_PATH": str(self.place / "lib/burst"), "BURST_SOCKET": str(self.host.socket), **env}

    def start(self, user, *words, env=None, pass_fds=()):
        """`user`: a user id, or words that run a command. A first word that names a copied program stands for its path."""
        user = as_user(user) if isinstance(user, int) else user
        own = self.place / "bin" / str(words[0])
        words = [own if own.exists() else words[0], *words[1:]]
        program = Program([*self.host.prefix(), *user, *words], self.environment(**(env or {})), pass_fds=pass_fds)
        self.started.append(program)
        return program

    def run(self, user, *words, **options):
        program = self.start(user, *words, **options)
        program.wait(SECONDS)
        return program.text()

    def burst(self, user, *words, **options):
        return self.run(user, self.place / "bin/burst", *words, **options)

    def end(self):
        for program in self.started:
            program.stop()
