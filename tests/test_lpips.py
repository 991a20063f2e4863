"""LPIPS with weights of its own: the formula, layer by layer, and what a bad file says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.lpips import load_lpips

# Convolutions of the two networks: name, outputs, size, stride, padding, and the pool before it.
ALEX = [
    ("net.slice1.0", 8, 11, 4, 2, None),
    ("net.slice2.3", 12, 5, 1, 2, (3, 2)),
    ("net.slice3.6", 10, 3, 1, 1, (3, 2)),
    ("net.slice4.8", 9, 3, 1, 1, None),
    ("net.slice5.10", 7, 3, 1, 1, None),
]
VGG = [
    (f"net.slice{part}.{number}", 4 + part, 3, 1, 1, (2, 2) if first and part > 1 else None)
    for part, numbers in enumerate(
        [(0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28)], start=1
    )
    for number, first in zip(numbers, (True, False, False), strict=False)
]
NETWORKS = {"alex": ALEX, "vgg": VGG}


def weights(layers):
    """Random weights with the names of the reference; fewer channels than the real ones."""
    random = np.random.default_rng(0)
    arrays, inputs = {}, 3
    for name, outputs, size, *_ in layers:
        scale = 1.5 / np.sqrt(inputs * size**2)
        kernel = random.normal(0, scale, (outputs, inputs, size, size))
        arrays[f"{name}.weight"] = kernel.astype(np.float32)
        arrays[f"{name}.bias"] = random.normal(0, 0.1, outputs).astype(np.float32)
        inputs = outputs
        part = int(name[len("net.slice")])
        lin = random.uniform(0, 1, (1, outputs, 1, 1)).astype(np.float32)
        arrays[f"lin{part - 1}.model.1.weight"] = lin
    return arrays


def save(path, arrays):
    np.savez(path, **arrays)
    return path


def convolve(image, kernel, bias, stride, padding):
    """The definition, in float64."""
    image = np.pad(image, [(0, 0), (padding, padding), (padding, padding)])
    size = kernel.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(image, (size, size), axis=(1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum("chwij,ocij->ohw", windows, kernel) + bias[:, None, None]


def reference(layers, arrays, prediction, target):
    def depths(image):
        values = (2 * image.astype(np.float64) - 1 - [-0.030, -0.088, -0.188]) / [
            0.458,
            0.448,
            0.450,
        ]
        values, found = values.transpose(2, 0, 1), {}
        for name, _, _, stride, padding, pool in layers:
            if pool:
                window, step = pool
                shape = (window, window)
                views = np.lib.stride_tricks.sliding_window_view(values, shape, axis=(1, 2))
                values = views[:, ::step, ::step].max(axis=(-2, -1))
            kernel = arrays[f"{name}.weight"].astype(np.float64)
            values = convolve(values, kernel, arrays[f"{name}.bias"], stride, padding)
            values = np.maximum(values, 0)
            found[name[len("net.slice")]] = values
        return found

    ours, theirs, total = depths(prediction), depths(target), 0.0
    for part, features in ours.items():
        a, b = (
            each / (np.sqrt(np.square(each).sum(axis=0, keepdims=True)) + 1e-10)
            for each in (features, theirs[part])
        )
        lin = arrays[f"lin{int(part) - 1}.model.1.weight"].reshape(-1, 1, 1)
        total += (lin * np.square(a - b)).sum(axis=0).mean()
    return total


@pytest.fixture
def images():
    random = np.random.default_rng(1)
    target = random.random((36, 41, 3)).astype(np.float32)
    noisy = np.clip(target + 0.2 * random.normal(size=target.shape), 0, 1).astype(np.float32)
    return noisy, target


@pytest.mark.parametrize("network", NETWORKS)
def test_the_formula(tmp_path, images, network):
    layers = NETWORKS[network]
    arrays = weights(layers)
    lpips = load_lpips(save(tmp_path / "weights.npz", arrays))
    assert lpips.network == network
    found = jax.jit(lambda metric, a, b: metric(a, b))(lpips, *map(jnp.asarray, images))
    expected = reference(layers, arrays, *images)
    assert expected > 1e-3
    # Some thousand float32 products for each feature.
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_equal_images_and_order(tmp_path, images):
    lpips = load_lpips(save(tmp_path / "weights.npz", weights(ALEX)))
    lpips = jax.jit(lpips)
    a, b = map(jnp.asarray, images)
    # Compilers may order the sums of the two differently.
    assert 0 <= float(lpips(a, a)) < 1e-12
    assert float(lpips(a, b)) == pytest.approx(float(lpips(b, a)), rel=1e-6)
    nearer = 0.7 * b + 0.3 * a
    assert float(lpips(nearer, b)) < float(lpips(a, b))


def test_the_gradient_is_finite_and_leads_downhill(tmp_path, images):
    lpips = load_lpips(save(tmp_path / "weights.npz", weights(ALEX)))
    a, b = map(jnp.asarray, images)
    both = jax.jit(jax.value_and_grad(lpips))
    value, slope = both(a, b)
    assert np.isfinite(slope).all() and np.any(slope)
    step = 1e-3 / float(jnp.linalg.norm(slope))
    assert float(both(a - step * slope, b)[0]) < float(value)
    # Also where the network sees nothing, or no difference.
    assert np.isfinite(both(b, b)[1]).all()


def test_names_of_the_reference_that_are_not_needed(tmp_path, images):
    arrays = weights(ALEX)
    sound = load_lpips(save(tmp_path / "a.npz", arrays))
    more = {f"lins.{part}.model.1.weight": arrays["lin0.model.1.weight"] for part in range(5)}
    more["scaling_layer.shift"] = np.zeros((1, 3, 1, 1))
    other = load_lpips(save(tmp_path / "b.npz", {**arrays, **more}))
    a, b = map(jnp.asarray, images)
    assert float(sound(a, b)) == float(other(a, b))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"lin3.model.1.weight": None}, "found no lin3.model.1.weight"),
        ({"net.slice4.8.bias": None}, "found no net.slice4.8.bias"),
        ({"net.slice1.0.bias": np.full(8, np.nan)}, "net.slice1.0.bias: found 8, wanted 1 dimens"),
        ({"net.slice1.0.bias": np.zeros(3)}, "net.slice1.0: found a kernel of (8, 3, 11, 11)"),
        ({"lin0.model.1.weight": np.ones((1, 5, 1, 1))}, "found 5 channels, wanted 8"),
    ],
)
def test_files_without_the_weights(tmp_path, change, words):
    arrays = {**weights(ALEX), **change}
    path = save(tmp_path / "a.npz", {key: each for key, each in arrays.items() if each is not None})
    with pytest.raises(ValueError) as caught:
        load_lpips(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and words in text and "numpy.savez" in text
    assert "\n" not in text


def test_no_file_and_another_file(tmp_path):
    with pytest.raises(ValueError, match="no such file, wanted the weights of LPIPS; write it wh"):
        load_lpips(tmp_path / "none.npz")
    for content in (b"", b"text", b"PK\x03\x04 broken"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(ValueError, match="not an npz file"):
            load_lpips(tmp_path / "bad.npz")


def test_images_that_cannot_be_compared(tmp_path, own_errors):
    lpips = load_lpips(save(tmp_path / "a.npz", weights(ALEX)))
    with pytest.raises(ValueError, match="got shape .*; give images of the same size"):
        lpips(jnp.zeros((40, 40, 3)), jnp.zeros((40, 41, 3)))
    with pytest.raises(ValueError, match="got 31 x 40 pixels; give images of at least 32 x 32"):
        lpips(jnp.zeros((31, 40, 3)), jnp.zeros((31, 40, 3)))
    assert float(lpips(jnp.zeros((32, 32, 3)), jnp.ones((32, 32, 3)))) > 0
