"""Two processes that use verbs, one on each side of the wire: requester and responder."""

from .pairs import burst_gid, guest_gid
from .peer import Peer, connect

AREA = 64 << 10


class Ends:
    """`a` is the requester and `b` the responder; `requester` names the side of `a`. Both have a region `m` of AREA bytes."""

    def __init__(self, rig, requester, family="ipv4"):
        self.rig, self.requester = rig, requester
        makers = {
            "burst": lambda: Peer(rig.host, "burst0", burst_gid(rig, family)),
            "rxe": lambda: Peer(rig.guest, "rxe0", guest_gid(rig.guest, family)),
        }
        self.a = makers[requester]()
        self.b = makers["rxe" if requester == "burst" else "burst"]()
        self.qpns = {}
        self.local = self.a.region("m", AREA, rights="lrwab")
        self.remote = self.b.region("m", AREA, rights="lrwab")

    def connect(self, kind="rc", **options):
        """A new pair of queue pairs; its name."""
        name = f"q{len(self.qpns)}"
        self.qpns[name] = connect(self.a, self.b, name, kind, **options)
        return name

    def at(self, offset=0):
        """Words that address the responder's region."""
        return {"remote": self.remote["addr"] + offset, "rkey": self.remote["rkey"]}

    def same(self, count, here=0, there=0):
        """Whether ranges of the two regions hold the same bytes."""
        return self.a.sum("m", here, count) == self.b.sum("m", there, count)

    def towards_guest(self, from_requester):
        """Whether packets of one of the two go to the guest."""
        return (self.requester == "burst") == from_requester

    def end(self):
        self.a.end()
        self.b.end()
