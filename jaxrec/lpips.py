"""LPIPS: how different two images look to a network that was trained to recognise things.

The networks' weights are no part of jaxrec: they are tens of megabytes under licences of their
own. They come as an npz file with the names of the reference implementation in PyTorch, which
whoever has that writes with

    import lpips, numpy
    net = lpips.LPIPS(net="alex")  # or "vgg"
    numpy.savez("lpips_alex.npz", **{k: v.numpy() for k, v in net.state_dict().items()})
"""

import dataclasses
import os
import pathlib
import zipfile
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._typing import pytree

# Mean and spread of the colours, in [-1, 1], that the networks were trained with.
_SHIFT = (-0.030, -0.088, -0.188)
_SPREAD = (0.458, 0.448, 0.450)
_EPSILON = 1e-10


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A convolution of a network: its place and number in the reference, and its geometry."""

    slice: int
    number: int
    stride: int = 1
    padding: int = 1

    @property
    def name(self) -> str:
        return f"net.slice{self.slice}.{self.number}"


@dataclasses.dataclass(frozen=True)
class _Network:
    """Convolutions with ReLU, in slices; each slice but the first begins with a max pool."""

    layers: Sequence[_Layer]
    pooled: Sequence[int]
    window: int


_NETWORKS: Mapping[str, _Network] = {
    "alex": _Network(
        [
            _Layer(1, 0, stride=4, padding=2),
            _Layer(2, 3, padding=2),
            *(_Layer(3, 6), _Layer(4, 8), _Layer(5, 10)),
        ],
        pooled=(2, 3),
        window=3,
    ),
    "vgg": _Network(
        [
            *(_Layer(1, 0), _Layer(1, 2), _Layer(2, 5), _Layer(2, 7)),
            *(_Layer(3, 10), _Layer(3, 12), _Layer(3, 14)),
            *(_Layer(4, 17), _Layer(4, 19), _Layer(4, 21)),
            *(_Layer(5, 24), _Layer(5, 26), _Layer(5, 28)),
        ],
        pooled=(2, 3, 4, 5),
        window=2,
    ),
}
_SLICES = (1, 2, 3, 4, 5)
_MAKE = (
    "write it where the PyTorch package lpips is installed: net = lpips.LPIPS(net='alex'); "
    "numpy.savez(FILE, **{k: v.numpy() for k, v in net.state_dict().items()})"
)


@pytree("network")
@dataclasses.dataclass(frozen=True, eq=False)
class Lpips:
    """The metric with its weights. It is a pytree and works inside `jax.jit`.

    Attributes:
        network: `alex` (the usual one for reports) or `vgg`.
        kernels: Of each convolution, in the order of the network: outputs, inputs, rows, columns.
        biases: Of each convolution.
        channels: How much each channel counts, for each of five depths of the network; >= 0.
    """

    network: str
    # The sizes differ from layer to layer, so the axes have no names.
    kernels: tuple[Float[Array, "_ _ _ _"], ...]
    biases: tuple[Float[Array, " _"], ...]
    channels: tuple[Float[Array, " _"], ...]

    def __call__(
        self, prediction: Float[Array, "height width 3"], target: Float[Array, "height width 3"]
    ) -> Float[Array, ""]:
        """Measures the distance of two images.

        Args:
            prediction: Colour in [0, 1].
            target: The truth.

        Returns:
            0 for equal images, up to rounding, and about 1 for very different ones.
            Differentiable; the gradient is 0 where the images are equal.

        Raises:
            ValueError: If the images differ in size, or are smaller than the network allows.

        References:
            Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual
            Metric", CVPR 2018, equation 1; version 0.1 of the linear weights.
        """
        if prediction.shape != target.shape:
            raise ValueError(
                f"prediction: got shape {prediction.shape} for a target of {target.shape}; give "
                "images of the same size"
            )
        if min(target.shape[:2]) < LEAST_SIZE:
            raise ValueError(
                f"prediction: got {target.shape[0]} x {target.shape[1]} pixels; give images of at "
                f"least {LEAST_SIZE} x {LEAST_SIZE}"
            )
        total = jnp.zeros((), jnp.float32)
        depths = self._features(jnp.stack([prediction, target]))
        for features, weights in zip(depths, self.channels, strict=True):
            ours, theirs = _unit(features)
            difference = jnp.square(ours - theirs)
            total += jnp.einsum("chw,c->hw", difference, weights).mean()
        return total

    def _features(self, images: Float[Array, "images h w 3"]) -> list[Array]:
        """What the network sees at each of its five depths, channels before rows."""
        shift, spread = jnp.asarray(_SHIFT, jnp.float32), jnp.asarray(_SPREAD, jnp.float32)
        values = 2 * images.astype(jnp.float32) - jnp.ones((), jnp.float32)
        values = jnp.moveaxis((values - _row(shift)) / _row(spread), -1, 1)
        network = _NETWORKS[self.network]
        found = {}
        part = 1
        for layer, kernel, bias in zip(network.layers, self.kernels, self.biases, strict=True):
            if layer.slice != part:
                part = layer.slice
                if part in network.pooled:
                    values = _pool(values, network.window)
            values = jax.lax.conv_general_dilated(
                values,
                kernel,
                (layer.stride, layer.stride),
                [(layer.padding, layer.padding)] * 2,
                precision=jax.lax.Precision.HIGHEST,
            )
            values = jax.nn.relu(values + bias[None, :, None, None])
            found[part] = values
        return [found[part] for part in _SLICES]


# Below, the last pool of AlexNet has nothing to look at.
LEAST_SIZE = 32


def load_lpips(path: str | os.PathLike[str]) -> Lpips:
    """Reads the weights of LPIPS from an npz file (see the module for where it comes from).

    Args:
        path: The file; which network it is follows from the names in it.

    Raises:
        ValueError: If there is no such file, or it does not hold the weights: one line that names
            the file, what is missing, and how to make it.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file, wanted the weights of LPIPS; {_MAKE}")
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name.startswith(("net.", "lin"))}
    # An array instead of an archive is no context manager.
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not an npz file ({error}); {_MAKE}") from error
    network = "vgg" if "net.slice5.28.weight" in arrays else "alex"
    layers = _NETWORKS[network].layers

    def take(name: str, dimensions: int) -> Float[Array, "..."]:
        if name not in arrays:
            raise ValueError(f"{path}: found no {name}; {_MAKE}")
        values = arrays[name]
        if values.ndim != dimensions or not np.isfinite(values).all():
            shape = " x ".join(map(str, values.shape))
            raise ValueError(
                f"{path}: {name}: found {shape or 'one number'}, wanted {dimensions} dimensions of "
                f"finite numbers; {_MAKE}"
            )
        return jnp.asarray(values, jnp.float32)

    kernels = tuple(take(f"{layer.name}.weight", 4) for layer in layers)
    biases = tuple(take(f"{layer.name}.bias", 1) for layer in layers)
    channels = tuple(take(f"lin{part - 1}.model.1.weight", 4).reshape(-1) for part in _SLICES)
    inputs = 3
    for layer, kernel, bias in zip(layers, kernels, biases, strict=True):
        if kernel.shape[1] != inputs or bias.shape != kernel.shape[:1]:
            raise ValueError(
                f"{path}: {layer.name}: found a kernel of {kernel.shape} for {inputs} channels; "
                f"{_MAKE}"
            )
        inputs = kernel.shape[0]
    depths = {layer.slice: kernel.shape[0] for layer, kernel in zip(layers, kernels, strict=True)}
    for part, weights in zip(_SLICES, channels, strict=True):
        if weights.shape[0] != depths[part]:
            raise ValueError(
                f"{path}: lin{part - 1}.model.1.weight: found {weights.shape[0]} channels, wanted "
                f"{depths[part]}; {_MAKE}"
            )
    return Lpips(network, kernels, biases, channels)


def _unit(
    features: Float[Array, "images channels h w"],
) -> Float[Array, "images channels h w"]:
    """Scales the channels of each pixel to length 1."""
    squared = jnp.square(features).sum(axis=1, keepdims=True)
    # The root has no derivative at 0, where the quotient is 0 anyway.
    positive = squared > 0
    length = jnp.sqrt(jnp.where(positive, squared, jnp.ones_like(squared)))
    length = jnp.where(positive, length, jnp.zeros_like(length))
    return features / jnp.broadcast_to(length + _EPSILON, features.shape)


def _pool(values: Array, window: int) -> Array:
    """The maximum of each window of pixels, every second one, without a border."""
    shape, strides = (1, 1, window, window), (1, 1, 2, 2)
    return jax.lax.reduce_window(values, -jnp.inf, jax.lax.max, shape, strides, "VALID")


def _row(values: Array) -> Array:
    return values[None, None, None, :]
