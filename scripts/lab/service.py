"""burstd as systemd starts it by share/systemd, without systemd: its user, capabilities, limits, umask and socket are those of the unit files.

What needs mount namespaces and seccomp (ProtectSystem=, SystemCallFilter=, …) is not emulated.
"""

import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path

from .fabric import Daemon, ROOT, build_directory

UNITS = ROOT / "share" / "systemd"
#: A user id that stands for the service's user.
SERVICE_UID = 4791
LISTEN_FD = 3


def settings(unit):
    """The settings of a unit file: name -> value; the last one of a name."""
    lines = (UNITS / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def open_files(service):
    """The service's limit of open files, or this process's hard limit if that is lower: a container's root may not raise it."""
    return min(int(service["LimitNOFILE"]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def confine(service):
    """Words that run a command with the service's user, capabilities, open files and umask."""
    caps = [cap.removeprefix("CAP_").lower() for cap in service["CapabilityBoundingSet"].split()]
    assert caps == [cap.removeprefix("CAP_").lower() for cap in service["AmbientCapabilities"].split()]
    plus = ",".join(f"+{cap}" for cap in caps)
    assert service["NoNewPrivileges"] == "yes"
    return [
        "prlimit", f"--nofile={open_files(service)}", "setpriv", f"--reuid={SERVICE_UID}", f"--regid={SERVICE_UID}",
        "--clear-groups", f"--bounding-set=-all,{plus}", f"--inh-caps=-all,{plus}", f"--ambient-caps=-all,{plus}", "--no-new-privs",
    ]


class Service(Daemon):
    """A running burstd, confined as a service; its socket is bound by root before it starts."""

    def __init__(self, prefix, path, port, env=None):
        service, unit = settings("burstd.service"), settings("burstd.socket")
        flags = [flag for flag in service["ExecStart"].split()[1:] if not flag.startswith("--socket=")]
        self.place = Path(tempfile.mkdtemp(prefix="burst-service-"))
        os.chmod(self.place, 0o755)
        # The build may lie where only root can read.
        shutil.copy(build_directory() / "burstd", self.place)
        assert "ListenSequentialPacket" in unit
        Path(path).unlink(missing_ok=True)
        with open(os.devnull), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            os.chmod(path, int(unit["SocketMode"], 8))
            listener.listen(int(unit["Backlog"]))
            # No other descriptor that is passed has the number 3: at least /dev/null and the socket were opened before. The shell's process id is the daemon's: all words of `confine` execute the next.
            start = f'exec {LISTEN_FD}<&"$0"; umask {service["UMask"]}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
            words = [*prefix, "bash", "-c", start, listener.fileno(), *confine(service)]
            super().__init__(words, path, port, flags, env=env, pass_fds=[listener.fileno()], burstd=self.place / "burstd")

    def stop(self, *how):
        code = super().stop(*how)
        shutil.rmtree(self.place, ignore_errors=True)
        return code
