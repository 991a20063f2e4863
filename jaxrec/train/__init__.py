"""Fitting spheres and a shader to frames."""

from .backdrop import Backdrop as Backdrop
from .batches import (
    FrameOrder as FrameOrder,
    FrameStack as FrameStack,
    stack_frames as stack_frames,
)
from .calibration import Calibration as Calibration
from .conversion import Conversion as Conversion, convert_shader as convert_shader
from .density import (
    Edit as Edit,
    apply_edit as apply_edit,
    plan_relocation as plan_relocation,
    relocate as relocate,
    relocation_due as relocation_due,
)
from .depth import DepthLoss as DepthLoss
from .evaluate import FittedScene as FittedScene, ViewScore as ViewScore, evaluate as evaluate
from .exposure import Exposure as Exposure, expose as expose
from .initialize import initial_spheres as initial_spheres
from .loop import fit as fit, start as start
from .model import Picture as Picture, SphereModel as SphereModel, build_shader as build_shader
from .normalizer import SceneNormalizer as SceneNormalizer
from .optimizer import make_optimizer as make_optimizer
from .record import (
    make_record as make_record,
    read_record as read_record,
    state_template as state_template,
)
from .refinement import CameraRefinement as CameraRefinement
from .settings import (
    FitSettings as FitSettings,
    LearningRates as LearningRates,
    LossWeights as LossWeights,
    Relocation as Relocation,
)
from .state import FitState as FitState
from .step import make_step as make_step
