"""Functions to first order, f(x + d) = f(x) + J d: the Jacobian J as the products J d and J^T v, never as a matrix."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.func import jvp, vjp

Map = Callable[[Tensor], Tensor]
Products = tuple[Tensor, Tensor, Map]  # f(x), J d, and v -> J^T v
Linearised = Callable[[Tensor], Products]  # of d


class LinearMap(NamedTuple):
    """A linear map and its transpose: what a layer does to a tangent, and to a gradient that comes back."""

    push: Map
    pull: Map


def differentiated(f: Map, x: Tensor) -> Linearised:
    """What PyTorch makes of any f: one forward pass that carries the tangent J d, and a reverse pass for each v.

    >>> import torch
    >>> _, tangent, pull = differentiated(lambda x: x**2, torch.tensor([1.0, 3.0]))(torch.ones(2))
    >>> tangent, pull(torch.tensor([0.0, 1.0]))
    (tensor([2., 6.]), tensor([0., 6.]))
    """

    def along(d: Tensor) -> Products:
        output, pull, tangent = vjp(lambda x: jvp(f, (x,), (d,)), x, has_aux=True)  # type: ignore[misc]
        return output, tangent, lambda v: pull(v)[0]

    return along


def composed(output: Tensor, maps: Sequence[LinearMap]) -> Linearised:
    """A function that is known to give `output`, and whose derivative is the maps, one after the other.

    >>> import torch
    >>> twice = LinearMap(lambda t: 2 * t, lambda u: 2 * u)
    >>> output, tangent, pull = composed(torch.zeros(1), [twice, twice])(torch.ones(1))
    >>> tangent, pull(tangent)
    (tensor([4.]), tensor([16.]))
    """

    def along(d: Tensor) -> Products:
        for layer in maps:
            d = layer.push(d)
        return output, d, pull

    def pull(v: Tensor) -> Tensor:
        for layer in reversed(maps):
            v = layer.pull(v)
        return v

    return along
