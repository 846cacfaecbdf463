"""The study of VAT's accuracy: its arms are runs of the recipe, and its stand-in for rounding is what it says."""

from types import ModuleType

import pytest
import torch
from study_scripts import load_study
from torch.testing import assert_close

from sntg import adversarial
from sntg.models import MLP, SmallNet, differentiated
from sntg.training import resolve


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return load_study("vat_accuracy")


def test_each_arm_changes_the_recipe_in_what_it_says_alone(study, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # tf32 and float16 are refused on a CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    recipe = resolve("cifar10", 4000, "vat+ent", device="cuda")
    for arm, settings in study.ARMS.items():
        config = resolve("cifar10", 4000, "vat+ent", device="cuda", **settings)
        changed = {key for key, value in config.as_dict().items() if value != getattr(recipe, key)} - {"overridden"}
        assert changed == {"precision"} | ({"epsilon"} if arm == "epsilon-6" else set())


def test_the_stand_in_for_rounding_pulls_back_noise_of_the_logits(study, monkeypatch):
    torch.manual_seed(0)
    x, e = torch.randn(5, 2), torch.randn(5, 3)
    net = MLP(2, 3, noise=0.0)
    predict = lambda x: net.eval()(x).logits  # noqa: E731
    monkeypatch.setattr(torch, "randn_like", lambda like: e)
    found = study.rounding_product(differentiated(predict, x), torch.randn(5, 2))
    for row in range(5):
        J = torch.func.jacrev(lambda r: predict(r[None])[0])(x[row])
        p = predict(x)[row].softmax(-1)
        assert_close(found[row], J.T @ ((torch.diag(p) - torch.outer(p, p)) @ e[row]), rtol=1e-3, atol=1e-7)


def test_only_the_arm_of_rounding_has_it_and_only_while_it_trains(study):
    for arm in study.ARMS:
        with study.direction_of(arm):
            assert (adversarial._hessian_product is study.rounding_product) == (arm == "rounding")
    assert adversarial._hessian_product is study.hessian_product


def test_directions_are_compared_by_how_far_they_move_the_prediction(study):
    torch.manual_seed(0)
    net = SmallNet((3, 16, 16), 10, dropout=0.5, normalisation="batch")
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    ways = study.compare(net, torch.randn(8, 3, 16, 16), epsilon=2.0)
    exact, chance = ways["exact"]["divergence"], ways["at random"]["divergence"]
    assert all(10 * chance < way["divergence"] < 2 * exact for name, way in ways.items() if name != "at random")
    assert ways["at random"]["to itself from another start"] < 0.1 < ways["exact"]["to itself from another start"]
    assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
