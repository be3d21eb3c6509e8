"""Why an image is not taken."""


class BadImage(ValueError):
    """The client's: it can never be taken as it is."""


class NoneTaken(BadImage):
    """This server takes no images at all."""


class ImagesBusy(Exception):
    """Requests under way hold as many images as this server keeps in memory."""
