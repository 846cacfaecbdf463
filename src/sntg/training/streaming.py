"""Training points that do not fit on the device: they stay in the host's memory and come a batch at a time.

While the device works on a step, a thread gathers the rows of the next one and copies them over beside it.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class Slot:
    """Room for one batch on either side, and two marks on the device's timeline: it is copied; it has been read."""

    def __init__(self, x: Tensor, n: int, device: torch.device) -> None:
        shape = (x.shape[0], n, *x.shape[2:])
        self.on_cuda = device.type == "cuda"
        self.host = torch.empty(shape, dtype=x.dtype, pin_memory=self.on_cuda)
        self.device = torch.empty(shape, dtype=x.dtype, device=device)
        if self.on_cuda:
            self.copied, self.read = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]


class Streamed:
    """Batches of n rows of x, (runs, N, *event) in the host's memory. `ready`, on the device, holds the step's.

    >>> points = Streamed(torch.arange(10.0).view(1, 5, 2), n=2, device=torch.device("cpu"))
    >>> points.load(torch.tensor([[4, 0]]), following=None)
    >>> points.ready
    tensor([[[8., 9.],
             [0., 1.]]])
    """

    def __init__(self, x: Tensor, n: int, device: torch.device) -> None:
        self.x = x
        self.slots = [Slot(x, n, device), Slot(x, n, device)]
        self.ready = torch.empty_like(self.slots[0].device)
        self.beside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self.beside is not None:
            self.beside.wait_stream(torch.cuda.current_stream(device))  # their memory may still be another's here
            for slot in self.slots:
                slot.device.record_stream(self.beside)  # whoever gets the memory next waits for a copy under way
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.coming: tuple[Tensor, Future[Slot]] | None = None

    def load(self, rows: Tensor, following: Tensor | None) -> None:
        """Makes `rows` (runs, n) ready, and begins with those of the step after, where they are known."""
        if self.coming is None or not torch.equal(self.coming[0], rows):
            self.coming = rows, self._begin(rows)
        slot = self.coming[1].result()
        if slot.on_cuda:
            torch.cuda.current_stream().wait_event(slot.copied)
        self.ready.copy_(slot.device)
        if slot.on_cuda:
            slot.read.record()
        self.coming = None if following is None else (following, self._begin(following))

    def _begin(self, rows: Tensor) -> "Future[Slot]":
        self.slots.reverse()
        return self.thread.submit(self._fetch, self.slots[0], rows)

    def _fetch(self, slot: Slot, rows: Tensor) -> Slot:
        if slot.on_cuda:
            slot.copied.synchronize()  # the host's side may be overwritten
        for points, target, numbers in zip(self.x, slot.host, rows, strict=True):
            torch.index_select(points, 0, numbers, out=target)
        if self.beside is None:
            slot.device.copy_(slot.host)
            return slot
        with torch.cuda.stream(self.beside):
            self.beside.wait_event(slot.read)
            slot.device.copy_(slot.host, non_blocking=True)
            slot.copied.record()
        return slot


def fits(x_bytes: int, device: torch.device) -> bool:
    """Whether points may stay on the device: they get half of the memory that is free there.

    >>> fits(2**60, torch.device("cpu"))
    True
    """
    return device.type != "cuda" or x_bytes <= torch.cuda.mem_get_info(device)[0] // 2
