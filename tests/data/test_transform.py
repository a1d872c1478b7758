"""The batched affine: hand-computed cases, ranges, keys, types."""

from __future__ import annotations

import math

import pytest
import torch

from warpgrad.data.transform import AffineRange, draw_affine, random_affine, to_float, transform
from warpgrad.errors import WarpgradError


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def shifted(down: float, right: float) -> torch.Tensor:
    return torch.tensor([[down, right]], dtype=torch.float64)


def picture(height: int, width: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(1, 2, height, width, generator=torch.Generator().manual_seed(1), dtype=dtype)


# With sides that are powers of two every coordinate is exact in binary, so these hold to the last bit.


def test_identity_gives_the_input_itself():
    images = picture(32, 16, torch.float32)
    assert torch.equal(transform(images, one(1), one(0), shifted(0, 0)), images)


def test_half_a_turn_flips_both_axes_exactly():
    images = picture(32, 16, torch.float32)
    assert torch.equal(transform(images, one(1), one(180), shifted(0, 0)), images.flip(2, 3))


def test_a_quarter_turn_is_counterclockwise_as_seen():
    images = picture(32, 32, torch.float32)
    assert torch.equal(transform(images, one(1), one(90), shifted(0, 0)), images.rot90(1, (2, 3)))


def test_a_shift_of_a_quarter_moves_by_a_quarter_of_each_side_and_brings_in_paper():
    images = picture(32, 16, torch.float32)
    moved = transform(images, one(1), one(0), shifted(0.25, -0.125))
    assert torch.equal(moved[:, :, 8:, :-2], images[:, :, :-8, 2:])
    assert not moved[:, :, :8].any()
    assert not moved[:, :, :, -2:].any()


def test_half_a_turn_comes_before_the_shift():
    images = picture(32, 32, torch.float32)
    moved = transform(images, one(1), one(180), shifted(0.25, 0.0))
    assert torch.equal(moved[:, :, 8:], images.flip(2, 3)[:, :, :-8])


@pytest.mark.parametrize("angle", [0.0, 180.0])
def test_the_real_size_agrees_to_rounding(angle):
    images = picture(28, 28)
    expected = images.flip(2, 3) if angle else images
    torch.testing.assert_close(transform(images, one(1), one(angle), shifted(0, 0)), expected, rtol=0, atol=1e-13)


def test_scale_two_by_hand():
    """Magnified twice, output pixel i shows input place (i + ½ − 2)/2 + 2 − ½: ¾, 1¼, 1¾, 2¼ in a row of 4."""
    row = torch.tensor([0.0, 4.0, 8.0, 12.0], dtype=torch.float64)
    images = row.expand(1, 1, 4, 4)
    larger = transform(images, one(2), one(0), shifted(0, 0))
    torch.testing.assert_close(larger, torch.tensor([3.0, 5.0, 7.0, 9.0], dtype=torch.float64).expand(1, 1, 4, 4))


def test_rotation_keeps_circles_round_on_an_oblong_page():
    """On 24×40 a dot 8 to the right of the centre goes 8 up by a quarter turn: pixels, not fractions, are rotated."""
    images = torch.zeros(1, 1, 24, 40, dtype=torch.float64)
    images[0, 0, 11:13, 27:29] = 1.0
    turned = transform(images, one(1), one(90), shifted(0, 0))
    expected = torch.zeros_like(images)
    expected[0, 0, 3:5, 19:21] = 1.0
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-12)


def test_any_angle_against_the_pixel_by_pixel_definition():
    images = picture(9, 12)
    scale, degrees, down, right = 1.1, 33.0, 0.15, -0.07
    result = transform(images, one(scale), one(degrees), shifted(down, right))
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    for row in range(9):
        for column in range(12):
            x, y = column - 5.5 - right * 12, row - 4.0 - down * 9
            u, v = (cosine * x - sine * y) / scale + 5.5, (sine * x + cosine * y) / scale + 4.0
            left, top = math.floor(u), math.floor(v)
            expected = torch.zeros(2, dtype=torch.float64)
            for i, j in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
                if 0 <= i < 9 and 0 <= j < 12:
                    expected += images[0, :, i, j] * (1 - abs(v - i)) * (1 - abs(u - j))
            torch.testing.assert_close(result[0, :, row, column], expected, rtol=0, atol=1e-12)


def test_draws_fill_their_ranges_and_no_more():
    scale, angle, shift = draw_affine(20_000, 3, AffineRange())
    for values, low, high in ((scale, 0.8, 1.2), (angle, 0.0, 360.0), (shift, -0.2, 0.2)):
        span = high - low
        assert low <= values.min() < low + 0.01 * span
        assert high - 0.01 * span < values.max() <= high
        # The mean of 20 000 uniform draws: 5 standard deviations.
        assert abs(float(values.mean()) - (low + high) / 2) < 5 * span / math.sqrt(12 * 20_000)
    # Down and right are drawn apart.
    assert abs(float(torch.corrcoef(shift.T)[0, 1])) < 5 / math.sqrt(20_000)


def test_a_key_is_a_draw():
    images = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8)
    before = torch.random.get_rng_state()
    first = random_affine(images, 5)
    assert torch.equal(first, random_affine(images, 5))
    assert not torch.equal(first, random_affine(images, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    same = random_affine(images[:1].expand(6, -1, -1, -1), 5)
    assert not torch.equal(same[0], same[1]), "each image has its own draw"


def test_uint8_becomes_unit_floats_and_floats_keep_their_type():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)
    torch.testing.assert_close(to_float(images), torch.tensor([0.0, 0.2, 1.0]))
    assert to_float(images, dtype=torch.float64).dtype is torch.float64
    assert images.tolist() == [0, 51, 255]
    assert random_affine(picture(28, 28), 0).dtype is torch.float64
    small = torch.full((2, 1, 28, 28), 255, dtype=torch.uint8)
    assert random_affine(small, 0).dtype is torch.float32
    assert float(random_affine(small, 0).max()) <= 1.0 + 1e-6


def test_what_is_no_image_is_refused():
    with pytest.raises(WarpgradError, match=r"not torch\.int64"):
        to_float(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(WarpgradError, match="convert them with to_float"):
        transform(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), one(1), one(0), shifted(0, 0))
    with pytest.raises(WarpgradError, match="are not valid: ranges"):
        AffineRange(scale=(1.2, 0.8))
