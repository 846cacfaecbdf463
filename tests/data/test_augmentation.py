"""Flips and translations: each image with a draw of its own, the border reflected or zero."""

import numpy as np
import pytest
import torch

from sntg.data import flip, translate


def distinct_images(*shape: int) -> torch.Tensor:
    """Images of which no two pixels are alike, so that a shift can be read off."""
    return 1 + torch.arange(float(np.prod(shape))).reshape(shape)


def shift_of(moved: np.ndarray, image: np.ndarray, pixels: int, padding: str = "reflect") -> tuple[int, int]:
    """The one shift, within +-pixels, that turns an image (channels, height, width) into the moved one."""
    mode = {"reflect": "reflect", "zero": "constant"}[padding]
    padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)), mode=mode)
    height, width = image.shape[1:]
    found = [
        (top - pixels, left - pixels)
        for top in range(2 * pixels + 1)
        for left in range(2 * pixels + 1)
        if np.array_equal(padded[:, top : top + height, left : left + width], moved)
    ]
    assert len(found) == 1, f"not a translation within the allowed pixels, {padding} at the border"
    return found[0]


# --- translation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("pixels", [1, 2])
@pytest.mark.parametrize("shape", [(400, 1, 6, 5), (400, 3, 5, 7)])
def test_every_image_is_moved_by_a_shift_of_its_own(shape, pixels, padding):
    torch.manual_seed(0)
    images = distinct_images(*shape)
    moved = translate(images, pixels, padding)
    assert moved.shape == images.shape
    shifts = [shift_of(m, i, pixels, padding) for m, i in zip(moved.numpy(), images.numpy(), strict=True)]
    times = {shift: shifts.count(shift) for shift in shifts}
    expected = 400 / (2 * pixels + 1) ** 2
    assert len(times) == (2 * pixels + 1) ** 2  # every shift there is, both axes independent
    assert all(abs(n - expected) < 5 * np.sqrt(expected) for n in times.values())  # all equally likely


def test_calls_draw_anew():
    images = distinct_images(50, 1, 6, 6)
    assert not torch.equal(translate(images, 2), translate(images, 2))


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("leading", [(2, 9), (3, 2, 9)])
def test_leading_axes_stay_and_every_image_in_them_is_moved_on_its_own(leading, padding):
    torch.manual_seed(0)
    images = distinct_images(*leading, 2, 6, 5)
    moved = translate(images, 2, padding)
    assert moved.shape == images.shape
    pairs = zip(moved.flatten(0, -4).numpy(), images.flatten(0, -4).numpy(), strict=True)
    assert len({shift_of(m, i, 2, padding) for m, i in pairs}) > 5


def test_the_border_is_reflected_unless_told():
    torch.manual_seed(0)
    default = translate(distinct_images(9, 1, 6, 6), 2)
    torch.manual_seed(0)
    assert torch.equal(default, translate(distinct_images(9, 1, 6, 6), 2, "reflect"))
    assert (default > 0).all()


def test_zeros_enter_where_an_image_was_moved_away_and_nowhere_else():
    torch.manual_seed(0)
    images = distinct_images(60, 2, 6, 5)
    moved = translate(images, 2, "zero").numpy()
    for m, i in zip(moved, images.numpy(), strict=True):
        down, right = shift_of(m, i, 2, "zero")
        assert (m == 0).sum() == 2 * (6 * 5 - (6 - abs(down)) * (5 - abs(right)))


def test_no_pixels_is_no_change():
    images = distinct_images(4, 1, 6, 6)
    assert translate(images, 0) is images


def test_the_images_given_are_left_as_they_were():
    images = distinct_images(4, 1, 6, 6)
    translate(images, 2)
    assert torch.equal(images, distinct_images(4, 1, 6, 6))


# --- flips -----------------------------------------------------------------------------------------------------------


def mirrored(flipped: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Of each image (n, channels, height, width), whether its columns are in reverse order: one or the other."""
    found = []
    for f, i in zip(flipped, images, strict=True):
        reverse = np.stack([i[:, :, column] for column in reversed(range(i.shape[2]))], 2)
        same, turned = np.array_equal(f, i), np.array_equal(f, reverse)
        assert same != turned, "neither the image nor its mirror image"
        found.append(turned)
    return np.array(found)


@pytest.mark.parametrize("shape", [(1, 6, 5), (3, 5, 6)])
def test_half_of_the_images_are_mirrored_left_to_right(shape):
    torch.manual_seed(0)
    images = distinct_images(1000, *shape)
    turned = mirrored(flip(images).numpy(), images.numpy())
    assert abs(turned.mean() - 0.5) < 4 * 0.5 / np.sqrt(1000)


def test_each_image_tosses_its_own_coin():
    """Neighbours agree as often as they differ."""
    torch.manual_seed(0)
    images = distinct_images(1000, 1, 4, 4)
    turned = mirrored(flip(images).numpy(), images.numpy())
    assert abs((turned[1:] == turned[:-1]).mean() - 0.5) < 4 * 0.5 / np.sqrt(999)


@pytest.mark.parametrize("leading", [(2, 100), (3, 2, 50), (60,)])
def test_leading_axes_stay_and_every_image_in_them_is_flipped_on_its_own(leading):
    torch.manual_seed(0)
    images = distinct_images(*leading, 2, 4, 5)
    flipped = flip(images)
    assert flipped.shape == images.shape
    turned = mirrored(flipped.flatten(0, -4).numpy(), images.flatten(0, -4).numpy()).reshape(leading)
    for group in turned.reshape(-1, leading[-1]):  # every run and view on its own
        assert 0.3 < group.mean() < 0.7
    if len(leading) > 1:
        assert (turned[0] != turned[1]).any()


def test_flips_are_drawn_anew_at_every_call():
    images = distinct_images(60, 1, 4, 4)
    assert not torch.equal(flip(images), flip(images))


def test_the_images_given_to_a_flip_are_left_as_they_were():
    images = distinct_images(20, 1, 4, 4)
    flip(images)
    assert torch.equal(images, distinct_images(20, 1, 4, 4))
