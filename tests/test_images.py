"""Image files become straight colour and alpha, whatever they are stored as."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from PIL import Image

from jaxrec.data._images import (
    area_average,
    find_image,
    image_size,
    read_image,
    read_mask,
    shrink_color,
    shrink_mask,
)
from jaxrec.data.errors import CaptureError

HEIGHT, WIDTH = 6, 9
# One step of 8 bits: what the darkest rounding of a decoder may lose.
STEP = 1 / 255


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def colors(rng):
    return rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


@pytest.fixture
def gray(rng):
    return rng.integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)


def saved(tmp_path, pixels, mode=None, name="image.png", **options):
    file = tmp_path / name
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (picture if mode is None else picture.convert(mode)).save(file, **options)
    return file


def test_rgb(tmp_path, colors):
    color, alpha = read_image(saved(tmp_path, colors))
    np.testing.assert_array_equal(color, colors.astype(np.float32) / np.float32(255))
    assert color.dtype == np.float32 and alpha is None


@pytest.mark.parametrize("name", ["a.bmp", "a.tif", "a.webp"])
def test_lossless_formats(tmp_path, colors, name):
    options = {"lossless": True} if name.endswith("webp") else {}
    color, _ = read_image(saved(tmp_path, colors, name=name, **options))
    np.testing.assert_allclose(color * 255, colors, atol=1e-4)


def test_straight_alpha(tmp_path, colors, gray):
    color, alpha = read_image(saved(tmp_path, np.dstack([colors, gray])))
    np.testing.assert_allclose(color * 255, colors, atol=1e-4)
    np.testing.assert_allclose(alpha * 255, gray, atol=1e-4)


def test_gray_is_three_equal_channels(tmp_path, gray):
    color, alpha = read_image(saved(tmp_path, gray))
    np.testing.assert_allclose(color * 255, np.repeat(gray[..., None], 3, 2), atol=1e-4)
    assert alpha is None


def test_gray_with_alpha(tmp_path, gray):
    picture = Image.merge("LA", [Image.fromarray(gray), Image.fromarray(255 - gray)])
    color, alpha = read_image(saved(tmp_path, picture))
    np.testing.assert_allclose(color[..., 1] * 255, gray, atol=1e-4)
    np.testing.assert_allclose(alpha * 255, 255 - gray, atol=1e-4)


def test_one_bit(tmp_path, gray):
    color, _ = read_image(saved(tmp_path, gray > 127))
    np.testing.assert_array_equal(color[..., 0], gray > 127)


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bit_gray(tmp_path, rng, name):
    deep = rng.integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
    deep[0, :2] = 0, 65535
    color, alpha = read_image(saved(tmp_path, deep, name=name))
    np.testing.assert_allclose(color[..., 2] * 65535, deep, atol=0.01)
    assert color.shape == (HEIGHT, WIDTH, 3) and alpha is None


def test_sixteen_bit_color(tmp_path, rng):
    deep = rng.integers(0, 65536, (HEIGHT, WIDTH, 3), dtype=np.uint16)
    file = tmp_path / "deep.png"
    file.write_bytes(png_of_sixteen_bits(deep))
    color, alpha = read_image(file)
    np.testing.assert_allclose(color, deep / 65535, atol=STEP)
    assert alpha is None


def test_palette(tmp_path, gray):
    levels = (gray // 64) * 64
    picture = Image.fromarray(levels).convert("P")
    color, alpha = read_image(saved(tmp_path, picture))
    np.testing.assert_allclose(color[..., 0] * 255, levels, atol=1e-4)
    assert alpha is None


def test_transparent_palette_entry(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 255, 0])
    picture.putpixel((1, 0), 1)
    color, alpha = read_image(saved(tmp_path, picture, transparency=0))
    np.testing.assert_array_equal(alpha, [[0, 1]])
    np.testing.assert_array_equal(color[0, 1], [0, 1, 0])


def test_cmyk_jpeg(tmp_path):
    picture = Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK")
    color, alpha = read_image(saved(tmp_path, picture, name="print.jpg", quality=100))
    np.testing.assert_allclose(color * 255, np.full((16, 16, 3), (200, 40, 90)), atol=4)
    assert alpha is None


def test_exif_orientation_is_not_applied(tmp_path, colors):
    exif = Image.Exif()
    exif[0x0112] = 6
    file = saved(tmp_path, colors, name="phone.jpg", exif=exif)
    assert image_size(file) == (WIDTH, HEIGHT)
    assert read_image(file)[0].shape == (HEIGHT, WIDTH, 3)


def test_float_pixels_have_no_known_range(tmp_path):
    file = saved(tmp_path, np.ones((2, 2), np.float32), name="depth.tif")
    with pytest.raises(CaptureError, match=r"depth\.tif: pixels of type F .*; save the image with"):
        read_image(file)


@pytest.mark.parametrize(
    "content, found",
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"hello", "not an image of a known format"),
        (b"version https://git-lfs.github.com/spec/v1\n", "the file is a Git LFS pointer"),
    ],
)
def test_what_is_no_image(tmp_path, content, found):
    file = tmp_path / "bad.png"
    file.write_bytes(content)
    for read in (image_size, read_image, read_mask):
        with pytest.raises(CaptureError, match=rf"bad\.png: {found}.*; copy or export it again"):
            read(file)


@pytest.mark.parametrize("name", ["cut.png", "cut.jpg"])
def test_truncated(tmp_path, rng, name):
    noise = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = saved(tmp_path, noise, name=name)
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(CaptureError, match=rf"{name}: the image cannot be decoded \(.*truncated"):
        read_image(file)


def test_masks_of_one_and_of_255_mean_the_same(tmp_path, gray):
    use = gray > 127
    for bright in (1, 255):
        mask = read_mask(saved(tmp_path, (use * bright).astype(np.uint8)))
        np.testing.assert_array_equal(mask, use)
    np.testing.assert_array_equal(read_mask(saved(tmp_path, (use * 65535).astype(np.uint16))), use)
    assert not read_mask(saved(tmp_path, np.zeros((2, 2), np.uint8))).any()


def test_find_image(tmp_path):
    (tmp_path / "train").mkdir()
    for name in ("r_0.png", "r_0_depth.png", "r_1.JPG", "v1.5.png", "Thumbs.db"):
        (tmp_path / "train" / name).touch()

    def found(name):
        file = find_image(tmp_path, name)
        return None if file is None else file.name

    assert found("./train/r_0") == "r_0.png"
    assert found("train\\r_0.png") == "r_0.png"
    assert found("train/r_1") == found("train/r_1.jpg") == "r_1.JPG"
    assert found("train/v1.5") == "v1.5.png"
    assert found(str(tmp_path / "train" / "r_0.png")) == "r_0.png"
    assert found("train/r_2") is found("train") is found("/") is None


@settings(deadline=None, max_examples=40)
@given(
    strategies.integers(1, 17),
    strategies.integers(1, 17),
    strategies.integers(1, 17),
    strategies.integers(1, 17),
)
def test_area_average_is_the_mean_over_each_rectangle(rows, columns, height, width):
    height, width = min(height, rows), min(width, columns)
    image = np.random.default_rng(rows).random((rows, columns, 2)).astype(np.float32)
    # Every pixel repeated so often that the rectangles end on borders.
    fine = image.repeat(height, axis=0).repeat(width, axis=1).astype(np.float64)
    expected = fine.reshape(height, rows, width, columns, 2).mean(axis=(1, 3))
    actual = area_average(image, width=width, height=height)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, atol=20 * np.finfo(np.float32).eps)


def test_transparent_pixels_lend_no_color():
    color = np.zeros((2, 2, 3), np.float32)
    color[0, 0], color[0, 1] = (1.0, 0.5, 0.25), (0.0, 1.0, 1.0)
    alpha = np.asarray([[0.5, 0], [0, 0]], np.float32)
    small, small_alpha = shrink_color(color, alpha, width=1, height=1)
    np.testing.assert_allclose(small[0, 0], color[0, 0], rtol=1e-6)
    np.testing.assert_allclose(small_alpha, [[0.125]])


def test_shrinking_commutes_with_a_background(rng):
    color, alpha = rng.random((12, 15, 3), np.float32), rng.random((12, 15), np.float32)
    alpha[:4, :4] = 0

    def over_white(color, alpha):
        return color * alpha[..., None] + (1 - alpha[..., None])

    small = shrink_color(color, alpha, width=4, height=5)
    expected = area_average(over_white(color, alpha), width=4, height=5)
    np.testing.assert_allclose(over_white(*small), expected, atol=1e-6)


def test_a_small_pixel_is_used_only_if_all_of_it_is():
    mask = np.ones((4, 6), bool)
    mask[0, 0] = False
    np.testing.assert_array_equal(
        shrink_mask(mask, width=3, height=2), [[False, True, True], [True, True, True]]
    )


def png_of_sixteen_bits(pixels):
    """A PNG file of 16-bit RGB pixels, which Pillow reads but does not write."""
    import struct
    import zlib

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(kind, data):
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ]
    )
