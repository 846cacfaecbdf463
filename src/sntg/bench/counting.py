"""How many operations a step takes: those of its convolutions and matrix products, counted while it runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, inside, the additions and multiplications of convolutions and matrix products, forward and backward.

    >>> import torch
    >>> with Products() as counted:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> counted.operations
    48
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None and not _by_zero(args):
            self.operations += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _by_zero(args: tuple[Any, ...]) -> bool:
    """Whether the second factor is all zeros. PyTorch's forward mode, which VAT uses, multiplies inputs by the weights'
    derivative, which is zero: work that no step needs, so that doing without it is a gain and not fewer operations."""
    return not args[1].any()


def count(work: Callable[[], object]) -> int:
    """The operations of one call.

    >>> import torch
    >>> count(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    48
    """
    counted = Products()
    with counted:
        work()
    return counted.operations
