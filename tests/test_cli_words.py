"""A thousand random command lines of `burst`, `burst-proxy`, `burstd` and `burst-sim`: each ends by itself, with a result or one sentence, and a misspelt word gets
the nearest valid one. The words and flags are those that `--help` lists; no daemon runs, and nothing may be written."""

import os
import random
import re
import subprocess

import pytest

from conftest import BUILD
from lab.users import as_user

LINES, SEED = 1000, 46
NO_RIGHTS = 65534
#: Subcommands that start programs, hosts or scenarios when they are right.
STARTS = {("run",), ("lab",), ("sim",), ("switch",), ("proxy", "run"), ("metrics",)}
VALUES = [
    "0", "1", "-1", "7", "0x11f", "99999999999999999999", "1e9", "10s", "5%", "4KiB", "udp", "udp:dev=lo", "burst0", "eth0", "127.0.0.1:99999", "unix:", "unix:/x",
    "::1", "fd00::1%lo", "host=debug", "=", "a=b=c", ",", "", " ", "-", "--", "\u00e9t\u00e9", "\u202e", "'", '"', "$(id)", "../..", "/dev/null", "/nonexistent", "x" * 5000, "\n", "%s%n",
]


def helped(*words):
    done = subprocess.run([BUILD / words[0], *words[1:], "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def words_of(program, *path):
    """The tree of a program: {path: (subcommands, flags)}."""
    text = helped(program, *path)
    block = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.M)
    commands = [name for name in re.findall(r"^  ([a-z][\w-]*)", block[1], re.M) if name != "help"] if block else []
    tree = {path: (commands, sorted(set(re.findall(r"(--[a-z][\w-]*)", text))))}
    for command in commands if program == "burst" or not path else []:
        # Commands of other programs are asked as those programs.
        tree |= words_of(program, *path, command)
    return tree


@pytest.fixture(scope="module")
def trees():
    return {"burst": words_of("burst"), "burstd": words_of("burstd")}


def misspelt(rng, word):
    """The word with one letter gone, doubled, or two exchanged."""
    at = rng.randrange(1, len(word) - 1)
    return rng.choice([word[:at] + word[at + 1:], word[:at] + word[at] + word[at:], word[:at] + word[at + 1] + word[at] + word[at + 2:]])


def line(rng, tree):
    """Random words: a path of subcommands, flags of it or of any, values. Returns them and the misspelt subcommand's right form, if there is one."""
    path = rng.choice(list(tree))
    commands, flags = tree[path]
    every = [flag for _, of in tree.values() for flag in of]
    words = list(path)
    if path and rng.random() < 0.15 and len(path[-1]) > 3:
        wrong = misspelt(rng, path[-1])
        if wrong not in tree[path[:-1]][0]:
            return [*path[:-1], wrong], path[-1]
    for _ in range(rng.randrange(0, 6)):
        kind = rng.random()
        if kind < 0.4 and flags:
            flag = rng.choice(flags)
            words += rng.choice([[flag], [flag, rng.choice(VALUES)], [f"{flag}={rng.choice(VALUES)}"]])
        elif kind < 0.5:
            words.append(misspelt(rng, rng.choice(every)))
        elif kind < 0.6:
            words.append(rng.choice(every))
        elif kind < 0.65 and commands:
            words.append(rng.choice(commands))
        else:
            words.append(rng.choice(VALUES))
    if any(path[:len(start)] == start for start in STARTS) or not path:
        # It may be right: then it must not begin.
        words.append("--no-such-flag-at-all" if path[:1] != ("run",) else "--sokcet=x")
    return words, None


def ran(program, words, place):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place), "BURST_SOCKET": str(place / "none.sock"), "XDG_RUNTIME_DIR": str(place), "TERM": "dumb"}
    # Without a namespace of its own a line that is right could change the host; with no rights it changes nothing.
    command = ["unshare", "--net", "--", *as_user(NO_RIGHTS), BUILD / program, *words]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, env=env, cwd=place)


def fault(done, words, right):
    """What is wrong with an answer, or nothing."""
    said = done.stderr.decode(errors="replace")
    # 127: as a shell, of a program that is not there.
    if done.returncode not in (0, 1, 2, *[127] * (words[:1] == ["run"])) or "panicked" in said:
        return "neither a result nor a refusal"
    if right and not (done.returncode and f'"{right}"' in said):
        return f"{right} is not named"
    # Help and what `doctor` has found are results, whatever the exit code.
    if done.returncode == 0 or "Usage:" in said or done.stdout:
        return None
    # A value with line breaks is quoted as it is.
    lines = [row for row in said.splitlines() if row.strip()]
    return None if lines and len(lines) <= 1 + sum(word.count("\n") for word in words) else "not one sentence"


def test_each_of_a_thousand_lines_ends_with_a_result_or_a_sentence(trees, tmp_path):
    os.chmod(tmp_path, 0o755)
    rng = random.Random(SEED)
    misspellings, faults = 0, []
    for number in range(LINES):
        program = rng.choice(["burst", "burst", "burst", "burstd"])
        words, right = line(rng, trees[program])
        if program == "burstd":
            words.append("--no-such-flag-at-all")
        done = ran(program, words, tmp_path)
        misspellings += right is not None
        if what := fault(done, words, right):
            faults.append(f"line {number}: {program} {[word[:60] for word in words]}: {done.returncode}, {what}\n{done.stderr.decode(errors='replace')[:600]}")
    assert not faults, f"{len(faults)} of {LINES}\n" + "\n".join(faults)
    assert misspellings > 50, misspellings
