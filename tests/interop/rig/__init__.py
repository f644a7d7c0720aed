"""A peer that is not Burst: Linux's rdma_rxe and rdma_cm in an emulated machine on a wire with a burstd.

`Rig` makes a namespace in which burstd runs on a bridge `eth0`, boots guests whose interfaces are ports of that bridge,
and can capture or lose what passes there. A `Guest` has the methods of `lab.Host`, so that `lab.run_pair` takes either
as client or as server; a `Peer` is the program of tests/programs/peer.c, driven line by line in either.
"""

from .guest import Guest
from .image import ImageError, build
from .peer import Peer, PeerError, connect
from .wire import Loss, Rig

__all__ = ["Guest", "ImageError", "Loss", "Peer", "PeerError", "Rig", "build", "connect"]
