"""Errors for images that are not accepted."""


class BadImage(ValueError):
    """A client's error: the image can never be accepted unchanged."""


class NoneTaken(BadImage):
    """An error of servers that accept no images."""


class ImagesBusy(Exception):
    """An error of a full server: requests hold as many images as it may keep in memory."""
