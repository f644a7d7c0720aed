"""Counts the instructions that a program executes in the drop-in library, by callgrind. The count is independent of other load."""

import re
import tempfile
from pathlib import Path

from .fabric import build_directory
from .waiting import LabError

SECONDS = 60


def by_object(profile):
    """Instructions by the file that holds them, from callgrind's output (format "callgrind", compressed names)."""
    names, sums, here, inclusive = {}, {}, None, False
    for line in profile.splitlines():
        if line.startswith(("ob=", "cob=")):
            key, number, name = re.fullmatch(r"(c?ob)=\((\d+)\)(?: (.*))?", line).groups()
            names.setdefault(number, name)
            here = names[number] if key == "ob" else here
        elif line.startswith("calls="):
            inclusive = True
        elif line[:1] in "+-*0123456789" and line:
            # The line after "calls=" is the callee's cost, which is also counted in the callee's own lines.
            if not inclusive:
                sums[Path(here).name] = sums.get(Path(here).name, 0) + int(line.split()[-1])
            inclusive = False
    return sums


def by_function(profile):
    """Counts of each event by function, from callgrind's output: {function: {event: count}}, without those of called functions."""
    names, sums, events, here, inclusive = {}, {}, [], None, False
    for line in profile.splitlines():
        if line.startswith("events: "):
            events = line.split()[1:]
        elif line.startswith(("fn=", "cfn=")):
            key, number, name = re.fullmatch(r"(c?fn)=\((\d+)\)(?: (.*))?", line).groups()
            names.setdefault(number, name)
            here = names[number] if key == "fn" else here
        elif line.startswith("calls="):
            inclusive = True
        elif line[:1] in "+-*0123456789" and line:
            if not inclusive:
                counts = sums.setdefault(here, dict.fromkeys(events, 0))
                for event, count in zip(events, line.split()[1:]):
                    counts[event] += int(count)
            inclusive = False
    return sums


def post_and_poll(host, interface, batch=1, requests=208):
    """Instructions of libibverbs per 64-byte WRITE: (posting, polling), by programs/post_poll."""
    counts = []
    for part in ("post", "poll"):
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "profile"
            options = [f"--toggle-collect=measured_{part}_{interface}", f"--callgrind-out-file={out}"]
            program = [build_directory() / "programs" / "post_poll", "burst0", interface, requests, batch]
            code, text = host.run("valgrind", "--tool=callgrind", *options, *program, seconds=SECONDS)
            if code:
                raise LabError(text)
            counts.append(by_object(out.read_text()).get("libibverbs.so.1", 0) / requests)
    return tuple(counts)
