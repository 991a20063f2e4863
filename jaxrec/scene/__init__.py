"""What is in the world."""

from .spheres import Spheres as Spheres, UnconstrainedSpheres as UnconstrainedSpheres
