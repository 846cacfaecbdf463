"""Operations of a step, against a count by hand: which passes a method makes, times the products of a pass."""

import pytest
import torch
from torch.func import jvp

from sntg.bench.counting import count
from sntg.training import resolve
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness

BATCH, LABELLED = 5, 3


def make_stack(dataset, method):
    labelled = {"labelled_batch": LABELLED} if method.startswith("vat") else {}
    # No term is zero in any batch; and what is compiled is not dispatched, so it is not counted.
    config = resolve(dataset, "all", method, batch=BATCH, ramp_up=0, engine="eager", **labelled)
    with own_randomness(config):
        return Stack([config])


def forward_products(model, side):
    """The operations of each layer for one input: two for every weight and place it is used at."""
    if not hasattr(model, "blocks"):
        return [2 * layer.V.numel() for layer in (*model.hidden, model.output)]
    found = []
    for number, block in enumerate(model.blocks):
        for layer in block:
            side += 2 * layer.taps.padding - layer.V.shape[-1] + 1
            found.append(2 * layer.V.numel() * side * side)
        if number < len(model.dropouts):
            side //= 2
    return [*found, 2 * model.output.V.numel()]


def by_hand(method, products):
    """Forward is one pass, backward two, but nobody wants the gradient of the first layer's input."""
    forward, first = sum(products), products[0]
    trained = 3 * forward - first
    direction = 2 * forward + forward  # value and tangent, then back to the input alone
    vat = LABELLED * trained + BATCH * (direction + trained)  # labelled; direction; along it
    return {
        "supervised": BATCH * trained,
        "pi": 2 * BATCH * trained,
        "tempens": BATCH * trained,
        "mt": BATCH * (trained + forward),
        "vat": vat + BATCH * forward,  # of the clean pass only the values are wanted
        "vat+ent": vat + BATCH * trained,  # the entropy wants its gradient too
    }[method.removesuffix("+sntg")]


METHODS = ["supervised", "pi", "pi+sntg", "tempens", "tempens+sntg", "mt", "mt+sntg"]
METHODS += ["vat", "vat+sntg", "vat+ent", "vat+ent+sntg"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", ["digits", "two-moons"])
def test_a_step_takes_the_products_that_its_passes_take(dataset, method):
    stack = make_stack(dataset, method)
    products = forward_products(stack.model, stack.test_x.shape[-1])
    assert count(stack.advance) == by_hand(method, products)


def test_a_product_with_the_derivative_of_a_constant_does_not_count():
    x, d, weight = torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
    once = 2 * weight.numel() * 4 * 4
    assert count(lambda: torch.conv2d(x, weight)) == once
    assert count(lambda: jvp(lambda x: torch.conv2d(x, weight), (x,), (d,))) == 2 * once


def test_what_is_no_product_does_not_count():
    x = torch.randn(4, 4)
    assert count(lambda: (x + x).exp().sum()) == 0
