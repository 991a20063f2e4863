"""What is in the world."""

from .actors import STATIC as STATIC, Actors as Actors, Placed as Placed
from .spheres import Spheres as Spheres, UnconstrainedSpheres as UnconstrainedSpheres
