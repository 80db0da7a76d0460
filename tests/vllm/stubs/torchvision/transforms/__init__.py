"""The one name that is looked into."""

import enum


class InterpolationMode(enum.Enum):
    """Ways to resize an image."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
