"""Flips and translations: each image with a draw of its own, the border reflected or zero."""

import numpy as np
import pytest
import torch

from sntg.data import centre, crop, flip, pad, translate


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


# --- a border kept with the images -----------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("pixels", [1, 2, 4])
@pytest.mark.parametrize("leading", [(3,), (2, 3), (2, 2, 3)])
def test_a_border_is_what_numpy_puts_around_each_image(leading, pixels, padding):
    images = distinct_images(*leading, 2, 6, 5)
    mode = {"reflect": "reflect", "zero": "constant"}[padding]
    around = [(0, 0)] * (images.ndim - 2) + [(pixels, pixels)] * 2
    np.testing.assert_array_equal(pad(images, pixels, padding), np.pad(images.numpy(), around, mode=mode))


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("pixels", [0, 1, 2, 4])
@pytest.mark.parametrize("leading", [(3,), (2, 3)])
def test_the_centre_of_an_image_with_a_border_is_the_image(leading, pixels, padding):
    images = distinct_images(*leading, 2, 6, 5)
    assert torch.equal(centre(pad(images, pixels, padding), pixels), images)


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("pixels", [1, 2])
def test_windows_of_images_with_a_border_are_the_moved_images_all_shifts_alike(pixels, padding):
    torch.manual_seed(0)
    images = distinct_images(2, 200, 3, 6, 5)
    windows = crop(pad(images, pixels, padding), pixels)
    assert windows.shape == images.shape
    pairs = zip(windows.flatten(0, 1).numpy(), images.flatten(0, 1).numpy(), strict=True)
    shifts = [shift_of(m, i, pixels, padding) for m, i in pairs]
    times = {shift: shifts.count(shift) for shift in shifts}
    expected = 400 / (2 * pixels + 1) ** 2
    assert len(times) == (2 * pixels + 1) ** 2
    assert all(abs(n - expected) < 5 * np.sqrt(expected) for n in times.values())


@pytest.mark.parametrize("padding", ["reflect", "zero"])
def test_cropping_what_has_a_border_is_translating_what_has_none(padding):
    """The same random numbers give the same windows: keeping the border changes no run."""
    images = distinct_images(2, 30, 3, 6, 5)
    kept = pad(images, 2, padding)
    torch.manual_seed(3)
    expected = translate(images, 2, padding)
    torch.manual_seed(3)
    assert torch.equal(crop(kept, 2), expected)


def test_a_reflected_image_has_the_reflected_border_so_flips_may_come_after_it():
    """Training flips the image and its border together; that is the border of the flipped image."""
    images = distinct_images(3, 2, 6, 5)
    for padding in ("reflect", "zero"):
        assert torch.equal(pad(images, 2, padding).flip(-1), pad(images.flip(-1), 2, padding))


def test_windows_are_drawn_anew_at_every_call_and_each_image_has_its_own():
    torch.manual_seed(0)
    same = pad(distinct_images(1, 1, 6, 6).expand(50, 1, 6, 6), 2)
    first, second = crop(same, 2), crop(same, 2)
    assert not torch.equal(first, second)
    assert len({tuple(image.flatten().tolist()) for image in first}) > 10


def test_without_a_border_nothing_is_done():
    images = distinct_images(4, 1, 6, 6)
    assert pad(images, 0) is images
    assert crop(images, 0) is images
    assert centre(images, 0) is images


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_type_of_the_images_stays(dtype):
    """On a GPU they are kept in 16 bits."""
    padded = pad(torch.ones(3, 1, 6, 6, dtype=dtype), 2)
    assert padded.dtype == crop(padded, 2).dtype == centre(padded, 2).dtype == flip(padded).dtype == dtype


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
