"""Fitting spheres and a shader to frames, and moving scenes to drives."""

from .antialias import (
    bound_due as bound_due,
    bound_radii as bound_radii,
    sharpest_pixels as sharpest_pixels,
)
from .backdrop import Backdrop as Backdrop
from .batches import (
    FrameOrder as FrameOrder,
    FrameStack as FrameStack,
    reduce_stack as reduce_stack,
    reduction as reduction,
    stack_frames as stack_frames,
)
from .calibration import Calibration as Calibration
from .conversion import Conversion as Conversion, convert_shader as convert_shader
from .density import (
    grow as grow,
    growth_due as growth_due,
    share_opacity as share_opacity,
    share_radius as share_radius,
)
from .depth import DepthLoss as DepthLoss
from .drive_data import crosses_boxes as crosses_boxes, lidar_depths as lidar_depths
from .drive_fit import (
    FittedDrive as FittedDrive,
    begin_drive as begin_drive,
    fit_drive as fit_drive,
)
from .drive_score import (
    ExposureScore as ExposureScore,
    ExposureView as ExposureView,
    SweepScore as SweepScore,
    SweepView as SweepView,
    every_other as every_other,
    score_exposures as score_exposures,
    score_sweeps as score_sweeps,
    score_views as score_views,
    view_exposures as view_exposures,
    view_sweeps as view_sweeps,
)
from .drive_settings import (
    CameraExposure as CameraExposure,
    DriveRates as DriveRates,
    DriveSettings as DriveSettings,
    DriveWeights as DriveWeights,
    RigRefinement as RigRefinement,
)
from .drive_start import Moving as Moving, start_drive as start_drive
from .drive_state import (
    DriveState as DriveState,
    drive_template as drive_template,
    make_drive_record as make_drive_record,
    read_drive_record as read_drive_record,
)
from .drive_step import grow_drive as grow_drive, make_drive_step as make_drive_step
from .edits import (
    Edit as Edit,
    apply_edit as apply_edit,
    plan_clone as plan_clone,
    plan_mcmc as plan_mcmc,
    plan_prune as plan_prune,
    plan_relocation as plan_relocation,
    plan_split as plan_split,
)
from .evaluate import FittedScene as FittedScene, ViewScore as ViewScore, evaluate as evaluate
from .exposure import Exposure as Exposure, expose as expose
from .growth import (
    MCMC as MCMC,
    Densification as Densification,
    Growth as Growth,
    NoGrowth as NoGrowth,
    Pruning as Pruning,
    Relocation as Relocation,
)
from .initialize import (
    Points as Points,
    depth_points as depth_points,
    initial_spheres as initial_spheres,
)
from .loop import fit as fit, start as start
from .model import Picture as Picture, SphereModel as SphereModel, build_shader as build_shader
from .moving_scene import MovingScene as MovingScene, Sight as Sight
from .normalizer import SceneNormalizer as SceneNormalizer
from .optimizer import make_optimizer as make_optimizer
from .record import (
    make_record as make_record,
    read_record as read_record,
    state_template as state_template,
)
from .refinement import CameraRefinement as CameraRefinement
from .rig_calibration import RigCalibration as RigCalibration
from .settings import (
    FitSettings as FitSettings,
    LearningRates as LearningRates,
    LossWeights as LossWeights,
)
from .state import FitState as FitState
from .step import make_step as make_step
from .visibility import (
    prune_due as prune_due,
    prune_hidden as prune_hidden,
    visibility as visibility,
)
