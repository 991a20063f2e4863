"""Poses for images that have none: structure from motion through pycolmap."""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._colmap_files import is_model
from ._document import listed
from ._image_folders import MASK_FOLDERS, image_files
from ._images import image_size
from .colmap import import_pycolmap
from .errors import CaptureError
from .video import extract_frames, is_video

if TYPE_CHECKING:
    import pycolmap

REPORT = "sfm.json"
# Each pair is compared up to this number of photos; beyond, each photo with its neighbours.
EXHAUSTIVE = 150
_NEIGHBOURS = 20
VIDEO_FRAMES = 120
# Fewer than this share of the images, or than this number, is no reconstruction of the scene.
LEAST_SHARE, LEAST_IMAGES = 0.5, 3
_MOST_PIXELS = 2000
# From so many images on, a lens with four coefficients follows from the images alone.
_ENOUGH_FOR_LENS = 20
_FEW_FEATURES = 100
# What pycolmap itself wants of two images to call them a pair.
_LEAST_MATCHES = 15


@dataclasses.dataclass(frozen=True)
class Structure:
    """What structure from motion has found.

    Attributes:
        folder: Holds `images` and COLMAP models in `sparse`: a capture for `open_capture`.
        registered: Names of the images that have a pose in the largest model.
        rejected: The others, with the reason.
        messages: One line each for the person who asked.
    """

    folder: pathlib.Path
    registered: list[str]
    rejected: dict[str, str]
    messages: list[str]


def photo_folder(path: pathlib.Path) -> pathlib.Path | None:
    """The folder with the photos of a capture without poses: itself, or `images` in it."""
    for folder in (path / "images", path):
        if folder.is_dir() and image_files(folder):
            return folder
    return None


def require_images(source: str | os.PathLike[str]) -> None:
    """Checks that there is something to reconstruct from, before anything is written.

    Raises:
        CaptureError: There is neither a video nor a folder with enough photos.
    """
    _identity(pathlib.Path(source), 0, VIDEO_FRAMES)


def reconstruct(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    video_frames: int = VIDEO_FRAMES,
    say: Callable[[str], None] = lambda line: None,
) -> Structure:
    """Estimates cameras and points of photos or a video, once.

    Features are SIFT's. Up to `EXHAUSTIVE` photos are matched each with each; more of them, and
    the frames of a video, with those beside them by name. Mapping is incremental. Seeds and the
    thread of the adjustment are fixed: the same images give the same model on the same machine.

    The result stays in `folder`; a call with the same images and options takes it from there.

    Args:
        source: A folder of photos (or with a folder `images`), or a video.
        folder: Where to write; replaced in one step when all is done.
        seed: Every random choice follows from it.
        video_frames: How many pictures of a video to take at most.
        say: Told what happens.

    Returns:
        The structure, in a world of arbitrary place, direction and scale.

    Raises:
        CaptureError: There are no images, pycolmap is missing, `folder` holds another structure,
            or fewer than half of the images (or than three) could be placed.
    """
    source, folder = pathlib.Path(source), pathlib.Path(folder)
    identity = _identity(source, seed, video_frames)
    if (folder / REPORT).is_file():
        return _earlier(folder, identity)
    pycolmap = import_pycolmap(source)
    work = folder.with_name(f".{os.getpid()}.{folder.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        _lay_out(source, work, video_frames, say)
        report = _Mapping(pycolmap, source, work, seed, say).run()
        report["identity"] = identity
        (work / REPORT).write_text(json.dumps(report, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _structure(folder, report)


def _identity(source: pathlib.Path, seed: int, video_frames: int) -> dict[str, Any]:
    """What a structure depends on."""
    if is_video(source):
        size = source.stat().st_size
        return {"video": size, "video_frames": video_frames, "seed": seed}
    photos = photo_folder(source)
    if photos is None:
        found = "found no photo"
        raise CaptureError(source, "", found, "give a folder of images, or a video")
    names = {
        file.relative_to(photos).as_posix(): file.stat().st_size for file in image_files(photos)
    }
    if len(names) < LEAST_IMAGES:
        found = f"found {len(names)} photos" if len(names) > 1 else "found 1 photo"
        raise CaptureError(photos, "", found, f"give at least {LEAST_IMAGES}, better twenty")
    return {"photos": names, "seed": seed}


def _earlier(folder: pathlib.Path, identity: Mapping[str, Any]) -> Structure:
    file = folder / REPORT
    try:
        report = json.loads(file.read_text())
        same = report["identity"] == identity
        structure = _structure(folder, report)
    except (ValueError, KeyError, TypeError) as error:
        found = "damaged"
        raise CaptureError(
            file, "", found, f"remove {folder} to estimate the poses anew"
        ) from error
    if not same:
        found = "the structure of other images, or by other options"
        advice = f"choose another folder, or remove {folder} to estimate the poses anew"
        raise CaptureError(file, "identity", found, advice)
    return structure


def _structure(folder: pathlib.Path, report: Mapping[str, Any]) -> Structure:
    registered, rejected = list(report["registered"]), dict(report["rejected"])
    total = len(registered) + len(rejected)
    messages = [
        f"structure from motion: {len(registered)} of {total} images have a pose, "
        f"{report['points']} points, mean reprojection error {report['error']:.2f} pixels; "
        "the scale is arbitrary"
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in rejected.items():
        reasons.setdefault(reason, []).append(name)
    messages += [f"without pose, {reason}: {listed(names)}" for reason, names in reasons.items()]
    return Structure(folder, registered, rejected, messages)


def _lay_out(
    source: pathlib.Path, work: pathlib.Path, video_frames: int, say: Callable[[str], None]
) -> None:
    """Makes the folder `images` of a capture: a link to photos, or the frames of a video."""
    images = work / "images"
    if is_video(source):
        say(f"choosing the sharpest pictures of {source.name}")
        files = extract_frames(source, images, most=video_frames)
        say(f"{len(files)} pictures")
        return
    photos = photo_folder(source)
    assert photos is not None
    images.symlink_to(photos.absolute(), target_is_directory=True)
    for name in MASK_FOLDERS:
        masks = [folder for folder in (source / name, photos.parent / name) if folder.is_dir()]
        if masks:
            (work / name).symlink_to(masks[0].absolute(), target_is_directory=True)


class _Mapping:
    """One run of pycolmap in a folder that has `images`."""

    def __init__(
        self,
        pycolmap: Any,
        source: pathlib.Path,
        work: pathlib.Path,
        seed: int,
        say: Callable[[str], None],
    ):
        self._pycolmap = pycolmap
        self._source = source
        self._images = work / "images"
        self._models = work / "sparse"
        self._database = work / "database.db"
        self._seed = seed
        self._say = say

    def run(self) -> dict[str, Any]:
        """Finds features, matches and models; returns the report."""
        logging = self._pycolmap.logging
        level = logging.minloglevel
        # Its errors are ours; the rest is for its developers.
        logging.minloglevel = int(logging.FATAL)
        try:
            self._pycolmap.set_random_seed(self._seed)
            files = image_files(self._images)
            names = [file.relative_to(self._images).as_posix() for file in files]
            self._extract(files, names)
            self._match(len(names))
            models = self._map()
        # pybind11 translates C++ exceptions to whatever is nearest.
        except (RuntimeError, ValueError) as error:
            if isinstance(error, CaptureError):
                raise
            found = f"pycolmap cannot place the images ({error})"
            raise CaptureError(self._source, "", found, "check that they can be opened") from error
        finally:
            logging.minloglevel = level
        report = self._report(names, models)
        self._database.unlink()
        return report

    def _extract(self, files: Sequence[pathlib.Path], names: Sequence[str]) -> None:
        self._say(f"finding features of {len(files)} images")
        pycolmap = self._pycolmap
        shared = len({_lens_key(file) for file in files}) == 1
        options = pycolmap.FeatureExtractionOptions(max_image_size=_MOST_PIXELS, use_gpu=False)
        reader = pycolmap.ImageReaderOptions()
        enough = shared and len(files) >= _ENOUGH_FOR_LENS
        reader.camera_model = "OPENCV" if enough else "SIMPLE_RADIAL"
        mode = pycolmap.CameraMode.SINGLE if shared else pycolmap.CameraMode.AUTO
        # Images get their numbers here, in order; threads would give them as they come, and
        # models depend on the numbers.
        pycolmap.Database.open(self._database).close()
        pycolmap.import_images(
            self._database, self._images, camera_mode=mode, image_names=list(names), options=reader
        )
        pycolmap.extract_features(
            self._database,
            self._images,
            image_names=list(names),
            camera_mode=mode,
            reader_options=reader,
            extraction_options=options,
            device=pycolmap.Device.cpu,
        )

    def _match(self, count: int) -> None:
        pycolmap = self._pycolmap
        matching = pycolmap.FeatureMatchingOptions(use_gpu=False)
        verification = pycolmap.TwoViewGeometryOptions()
        verification.ransac.random_seed = self._seed
        options = {
            "matching_options": matching,
            "verification_options": verification,
            "device": pycolmap.Device.cpu,
        }
        if count <= EXHAUSTIVE and not is_video(self._source):
            self._say(f"matching {count * (count - 1) // 2} pairs of images")
            pycolmap.match_exhaustive(self._database, **options)
            return
        pairing = pycolmap.SequentialPairingOptions(
            overlap=_NEIGHBOURS, quadratic_overlap=True, loop_detection=False
        )
        self._say(f"matching each image with {_NEIGHBOURS} beside it by name")
        pycolmap.match_sequential(self._database, pairing_options=pairing, **options)

    def _map(self) -> "dict[int, pycolmap.Reconstruction]":
        self._say("placing cameras and points")
        options = self._pycolmap.IncrementalPipelineOptions()
        options.min_model_size = LEAST_IMAGES
        options.random_seed = options.mapper.random_seed = self._seed
        options.triangulation.random_seed = self._seed
        # Sums of several threads come in any order, and with them the last bits of every pose.
        options.num_threads = options.mapper.num_threads = 1
        self._models.mkdir()
        return self._pycolmap.incremental_mapping(
            self._database, self._images, self._models, options
        )

    def _report(
        self, names: Sequence[str], models: "Mapping[int, pycolmap.Reconstruction]"
    ) -> dict[str, Any]:
        posed = {number: _posed(model) for number, model in models.items()}
        # The first of equals, as the reader of models takes it.
        best = max(sorted(posed), key=lambda number: len(posed[number]), default=None)
        registered = sorted(posed[best]) if best is not None else []
        elsewhere = {name: number for number, group in posed.items() for name in group}
        rejected = self._reasons([name for name in names if name not in registered], elsewhere)
        if len(registered) < max(LEAST_IMAGES, LEAST_SHARE * len(names)):
            counts: dict[str, int] = {}
            for reason in rejected.values():
                counts[reason] = counts.get(reason, 0) + 1
            why = "; ".join(f"{count} {reason}" for reason, count in counts.items())
            raise CaptureError(
                self._source,
                "",
                f"only {len(registered)} of {len(names)} images could be placed ({why})",
                f"wanted {100 * LEAST_SHARE:.0f} % and at least {LEAST_IMAGES}: take sharp images "
                "of a textured scene that overlap by two thirds, and remove those of other scenes",
            )
        assert best is not None
        model = models[best]
        return {
            "registered": registered,
            "rejected": rejected,
            "points": model.num_points3D(),
            "error": float(model.compute_mean_reprojection_error()),
        }

    def _reasons(self, names: Iterable[str], elsewhere: Mapping[str, int]) -> dict[str, str]:
        """Why images have no pose."""
        with self._pycolmap.Database.open(self._database) as database:
            images = {image.name: image.image_id for image in database.read_all_images()}
            features = {
                name: database.num_keypoints_for_image(number) for name, number in images.items()
            }
            partners: dict[int, int] = {}
            pairs, inliers = database.read_two_view_geometry_num_inliers()
        for pair, count in zip(pairs, inliers, strict=True):
            if count >= _LEAST_MATCHES:
                for number in self._pycolmap.pair_id_to_image_pair(pair):
                    partners[number] = partners.get(number, 0) + 1
        reasons = {}
        for name in names:
            if name in elsewhere:
                reasons[name] = "as they hang together with each other only"
            elif name not in images:
                reasons[name] = "as they cannot be read"
            elif features[name] < _FEW_FEATURES:
                reasons[name] = f"with fewer than {_FEW_FEATURES} features (plain or blurred)"
            elif not partners.get(images[name]):
                reasons[name] = "as they overlap with no other image"
            else:
                reasons[name] = "as they overlap with others too little"
        return reasons


def _posed(model: "pycolmap.Reconstruction") -> list[str]:
    return [image.name for image in model.images.values() if image.has_pose]


def _lens_key(file: pathlib.Path) -> tuple[object, ...]:
    """What differs between images of different cameras, lenses or zooms, by their headers."""
    from PIL import Image

    size = image_size(file)
    with Image.open(file) as picture:
        exif = picture.getexif()
        detail = exif.get_ifd(0x8769)
    # Make, model, and focal length in millimetres.
    return (*size, exif.get(0x010F), exif.get(0x0110), detail.get(0x920A))


def is_reconstructed(folder: pathlib.Path) -> bool:
    """Whether a folder holds a structure of `reconstruct`."""
    models = (folder / "sparse").glob("*")
    return (folder / REPORT).is_file() and any(map(is_model, models))
