"""The study of variants of Pi+SNTG: with none it is the recipe, and each does what its line says."""

from types import ModuleType

import pytest
import torch
from study_scripts import load_study
from torch.testing import assert_close

from sntg.graph import Pairs, sntg_loss
from sntg.losses import consistency_mse, cross_entropy
from sntg.methods.base import Batch, Passes, Setup
from sntg.methods.pi import Pi
from sntg.models import SmallNet, stack

N, CLASSES = 8, 3
LABELS = torch.tensor([[0, 1, 2, 0, -1, -1, -1, -1]])


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return load_study("pi_variants")


def chosen(study: ModuleType, *names: str) -> type[Pi]:
    return type("Chosen", (study.Variant,), {"chosen": set(names)})


def step(method: type[Pi]) -> tuple[Pi, Batch, Passes]:
    """A step whose flips move all images by a number drawn for each call."""
    torch.manual_seed(0)
    model = stack([SmallNet((3, 16, 16), CLASSES)])
    batch = Batch(torch.randn(1, N, 3, 16, 16), LABELS, torch.arange(N)[None])
    made = method(Setup(model, lambda x: x, consistency_mse, N, CLASSES, {}, flip=lambda x: x + torch.rand(())))
    return made, batch, made.passes(batch)


def test_with_none_it_is_the_pi_model(study):
    (_, _, ours), (_, _, pi) = step(chosen(study)), step(Pi)
    assert_close(ours.terms, pi.terms, rtol=0, atol=0)
    assert_close(tuple(ours.student), tuple(pi.student), rtol=0, atol=0)
    assert_close(ours.target, pi.target, rtol=0, atol=0)


def test_graphs_of_the_mean_and_of_the_first_branch(study):
    method, batch, passes = step(chosen(study, "mean-graph"))
    own = passes.student.logits.softmax(-1)
    assert_close(method.teacher(batch, passes), (own + passes.target) / 2)
    method, batch, passes = step(chosen(study, "own-graph"))
    assert_close(method.teacher(batch, passes), own)
    assert not method.teacher(batch, passes).requires_grad


def test_the_cross_entropy_of_both_branches(study):
    _, _, passes = step(chosen(study, "both-labels"))
    of_b = -passes.target.log().gather(-1, LABELS.clamp(0)[..., None])[..., 0].where(LABELS >= 0, 0).mean()
    assert_close(passes.terms["supervised"][0], (cross_entropy(passes.student.logits, LABELS)[0] + of_b) / 2)
    assert passes.terms["supervised"] != step(Pi)[2].terms["supervised"]


def test_flips_of_their_own(study, monkeypatch):
    shown = []
    monkeypatch.setattr(SmallNet, "h", lambda self, x: shown.append(x) or x.flatten(-3)[..., :128])
    for names in ((), ("own-flips",)):
        step(chosen(study, *names))
    shared, own = ((views[:, 1] - views[:, 0]).abs().max() for views in shown)
    assert shared == 0
    assert own > 0


def test_features_and_logits_in_16_bits(study):
    (_, _, short), (_, _, pi) = step(chosen(study, "dense-16")), step(Pi)
    for of_16, of_32 in zip(short.student, pi.student, strict=True):
        assert_close(of_16, of_32, rtol=0.02, atol=0.02)
        assert_close(of_16, of_16.bfloat16().float(), rtol=0, atol=0)
    assert not torch.equal(short.student.logits, pi.student.logits)


def test_the_graph_term_on_both_branches(study):
    _, _, passes = step(chosen(study, "both-features"))
    features, W, pairs = passes.student.features, torch.ones(1, N // 2), Pairs(torch.arange(4), torch.arange(4, 8))
    each = [sntg_loss(branch, W, pairs) for branch in features.unbind(1)]
    assert_close(study.mean_over_branches(features, W, pairs), sum(each) / 2)
    assert_close(features[:, 0], step(Pi)[2].student.features)


def test_variants_that_are_none_are_refused(study):
    for names in ("", "both-feet", "own-flips+"):
        with pytest.raises(SystemExit, match="mean-graph"):
            study.choose(names)
