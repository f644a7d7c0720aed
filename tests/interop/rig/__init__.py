"""A peer that nobody here wrote: Linux's rdma_rxe and rdma_cm in an emulated machine on a wire with a burstd.

`Rig` makes a namespace in which burstd runs on a bridge `eth0`, boots guests whose interfaces are ports of that bridge,
and can capture or lose what passes there. A `Guest` has the methods of `lab.Host`, so that `lab.run_pair` takes either
as client or as server.
"""

from .guest import Guest
from .image import ImageError, build
from .wire import Loss, Rig

__all__ = ["Guest", "ImageError", "Loss", "Rig", "build"]
