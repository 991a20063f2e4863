"""Frames that stay in their files: the same bits as in memory, within a number of bytes."""

import threading

import numpy as np
import pytest

from capture_files import HEIGHT, WIDTH, write_capture, write_image
from jaxrec.data import CaptureError, open_capture, stored_frames as stored_frames_module
from jaxrec.sensors import Frame, stream_frames

ONE = WIDTH * HEIGHT * 16


@pytest.fixture
def decoded(monkeypatch):
    """Names of the images in the order in which they are read, once frames are there."""
    names = []
    read = stored_frames_module.read_pixels

    def counted(listing, reading):
        names.append(listing.name)
        return read(listing, reading)

    monkeypatch.setattr(stored_frames_module, "read_pixels", counted)
    return names


def assert_equal_frames(one, other):
    assert one.name == other.name
    np.testing.assert_array_equal(one.image, other.image)
    for a, b in ((one.alpha, other.alpha), (one.mask, other.mask)):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.camera.focal, other.camera.focal)
    np.testing.assert_array_equal(one.camera.world_from_camera, other.camera.world_from_camera)
    assert (one.camera.width, one.camera.height) == (other.camera.width, other.camera.height)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("downscale", [1, 3])
def test_the_same_bits_as_in_memory(tmp_path, mode, downscale):
    file = write_capture(tmp_path, mode=mode)
    write_image(tmp_path / "masks" / "03.png", mode="L")
    held = open_capture(file, downscale=downscale)
    stored = open_capture(file, downscale=downscale, image_memory=2 * ONE // downscale**2)
    assert all(view.in_memory for view in held.frames)
    assert not any(view.in_memory for view in stored.frames)
    assert held.has_alpha == stored.has_alpha == (mode == "RGBA")
    for ours, theirs in zip(stored.frames, held.frames, strict=True):
        assert isinstance(ours, Frame)
        assert_equal_frames(ours, theirs)
        assert_equal_frames(ours.load(), theirs)
        assert ours.load().in_memory and theirs.load() is theirs
        np.testing.assert_array_equal(ours.over((1.0, 0.0, 1.0)), theirs.over((1.0, 0.0, 1.0)))


def test_a_message_says_so(tmp_path):
    file = write_capture(tmp_path)
    told = "10 images take 15.4 kB of memory, more than 4 kB: they are read from their files"
    messages = open_capture(file, image_memory=4000).messages
    assert any(message.startswith(told) for message in messages)
    assert open_capture(file, image_memory=10 * ONE).messages == open_capture(file).messages


def test_opening_reads_no_image(tmp_path, decoded):
    capture = open_capture(write_capture(tmp_path), image_memory=0)
    assert decoded == []
    assert capture.train[2].image.shape == (HEIGHT, WIDTH, 3)
    assert decoded == [capture.train[2].name]


def test_what_was_seen_last_is_held(tmp_path, decoded):
    views = open_capture(write_capture(tmp_path), image_memory=3 * ONE).train
    store = views[0]._store
    for index in (0, 1, 2, 0, 3, 0, 2, 1):
        assert views[index].image is not None
        assert store.held_bytes <= 3 * ONE
    # 1 makes room for 3; 3 for 1.
    assert decoded == [views[index].name for index in (0, 1, 2, 3, 1)]


def test_at_least_one_image_is_held(tmp_path, decoded):
    views = open_capture(write_capture(tmp_path), image_memory=1).train
    for _ in range(3):
        assert views[0].image is not None and views[0].mask is None
    assert decoded == [views[0].name]


def test_the_order_of_a_stream_is_that_asked_for(tmp_path, decoded):
    file = write_capture(tmp_path)
    held, stored = open_capture(file).train, open_capture(file, image_memory=3 * ONE).train
    order = np.random.default_rng(0).permutation(np.tile(np.arange(8), 4)).reshape(-1, 2)
    for index, ours in zip(order, stream_frames(stored, order), strict=True):
        assert len(ours) == 2 and all(view.in_memory for view in ours)
        for view, place in zip(ours, index, strict=True):
            assert_equal_frames(view, held[place])
    assert stored[0]._store.held_bytes <= 3 * ONE
    # Frames in memory go through as they are.
    for index, ours in zip(order, stream_frames(held, order), strict=True):
        assert all(view is held[place] for view, place in zip(ours, index, strict=True))


def test_a_stream_reads_ahead_on_a_thread(tmp_path, monkeypatch):
    views = open_capture(write_capture(tmp_path), image_memory=6 * ONE).train
    began, read = {}, stored_frames_module.read_pixels

    def noted(listing, reading):
        began[listing.name] = threading.current_thread()
        return read(listing, reading)

    monkeypatch.setattr(stored_frames_module, "read_pixels", noted)
    stream = stream_frames(views, [[index] for index in range(8)], ahead=2)
    assert began == {}
    next(stream)
    views[0]._store.get(2)
    assert set(began) == {views[index].name for index in range(3)}
    assert threading.main_thread() not in began.values()


def test_steps_are_taken_as_they_come(tmp_path):
    """An endless order is no obstacle."""
    views = open_capture(write_capture(tmp_path), image_memory=0).train

    def forever():
        while True:
            yield [1]

    stream = stream_frames(views, forever())
    assert [next(stream)[0].name for _ in range(5)] == [views[1].name] * 5


def test_a_file_that_goes_away_is_told_and_may_come_back(tmp_path):
    views = open_capture(write_capture(tmp_path), image_memory=0).train
    file = tmp_path / views[0].name
    content = file.read_bytes()
    file.write_bytes(content[:40])
    with pytest.raises(CaptureError, match="not an image of a known format"):
        _ = views[0].image
    write_image(file, size=(5, 5))
    with pytest.raises(CaptureError, match="has 5 x 5 pixels, not 12 x 8; it has changed"):
        _ = views[0].image
    file.write_bytes(content)
    assert views[0].image.shape == (HEIGHT, WIDTH, 3)


def test_a_negative_number_of_bytes(tmp_path):
    with pytest.raises(ValueError, match="image_memory: got -1; give a number of bytes >= 0"):
        open_capture(write_capture(tmp_path), image_memory=-1)


@pytest.mark.slow
def test_a_fit_sees_the_same_wherever_the_images_lie(tmp_path):
    import jax

    from jaxrec.data.mesh_scene import mesh_scene, write_blender
    from jaxrec.train import FitSettings, fit

    write_blender(mesh_scene(size=16, train=8, test=2), tmp_path / "scene")
    settings = FitSettings.preset("cpu", steps=4, spheres=60)
    held, stored = (
        fit(open_capture(tmp_path / "scene", image_memory=memory).train, settings)
        for memory in (None, 2 * 16 * 16 * 16)
    )
    for ours, theirs in zip(
        jax.tree.leaves(stored.state.params), jax.tree.leaves(held.state.params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
