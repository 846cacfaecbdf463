"""Which images the GPU's operators take."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from sntg.models import grid
from sntg.models.operators import can_fuse


def test_images_elsewhere_than_on_a_gpu_are_not_fused():
    assert not can_fuse(torch.zeros(2, 3, 32, 4, 4), 32)


@pytest.mark.parametrize(
    ("dtype", "channels", "fits"),
    [
        (torch.bfloat16, 32, True),
        (torch.float16, 96, True),
        (torch.float32, 128, True),
        (torch.float64, 32, False),  # the kernels compute in float32
        (torch.bfloat16, 48, False),
    ],
    ids=str,
)
def test_which_images_on_a_gpu_are_fused(dtype, channels, fits):
    with FakeTensorMode():
        x = torch.empty(2, 3, 32, 4, 4, dtype=dtype, device="cuda")
        assert can_fuse(x, channels) == (fits and grid.AVAILABLE)
