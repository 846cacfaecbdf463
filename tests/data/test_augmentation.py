"""Translation: each image moved by its own whole number of pixels, the border reflected."""

import numpy as np
import pytest
import torch

from sntg.data import translate


def distinct_images(*shape: int) -> torch.Tensor:
    """Images of which no two pixels are alike, so that a shift can be read off."""
    return torch.arange(float(np.prod(shape))).reshape(shape)


def shift_of(moved: np.ndarray, image: np.ndarray, pixels: int) -> tuple[int, int]:
    """The one shift, within +-pixels, that turns an image (channels, height, width) into the moved one."""
    padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)), mode="reflect")
    height, width = image.shape[1:]
    found = [
        (top - pixels, left - pixels)
        for top in range(2 * pixels + 1)
        for left in range(2 * pixels + 1)
        if np.array_equal(padded[:, top : top + height, left : left + width], moved)
    ]
    assert len(found) == 1, "not a reflected translation within the allowed pixels"
    return found[0]


@pytest.mark.parametrize("pixels", [1, 2])
@pytest.mark.parametrize("shape", [(400, 1, 6, 5), (400, 3, 5, 7)])
def test_every_image_is_moved_by_a_shift_of_its_own(shape, pixels):
    torch.manual_seed(0)
    images = distinct_images(*shape)
    moved = translate(images, pixels)
    assert moved.shape == images.shape
    shifts = [shift_of(m, i, pixels) for m, i in zip(moved.numpy(), images.numpy(), strict=True)]
    times = {shift: shifts.count(shift) for shift in shifts}
    expected = 400 / (2 * pixels + 1) ** 2
    assert len(times) == (2 * pixels + 1) ** 2  # every shift there is, both axes independent
    assert all(abs(n - expected) < 5 * np.sqrt(expected) for n in times.values())  # all equally likely


def test_calls_draw_anew():
    images = distinct_images(50, 1, 6, 6)
    assert not torch.equal(translate(images, 2), translate(images, 2))


@pytest.mark.parametrize("leading", [(2, 9), (3, 2, 9)])
def test_leading_axes_stay_and_every_image_in_them_is_its_own(leading):
    torch.manual_seed(0)
    images = distinct_images(*leading, 2, 6, 5)
    moved = translate(images, 2)
    assert moved.shape == images.shape
    pairs = zip(moved.flatten(0, -4).numpy(), images.flatten(0, -4).numpy(), strict=True)
    assert len({shift_of(m, i, 2) for m, i in pairs}) > 5


def test_no_pixels_is_no_change():
    images = distinct_images(4, 1, 6, 6)
    assert translate(images, 0) is images


def test_the_images_given_are_left_as_they_were():
    images = distinct_images(4, 1, 6, 6)
    translate(images, 2)
    assert torch.equal(images, distinct_images(4, 1, 6, 6))
