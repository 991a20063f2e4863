"""What is in the world."""

from ._actor_poses import STATIC as STATIC
from .actors import Actors as Actors, Placed as Placed
from .spheres import Spheres as Spheres, UnconstrainedSpheres as UnconstrainedSpheres
