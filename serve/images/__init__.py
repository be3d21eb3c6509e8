"""Images of requests: their sources, limits and conversion to engine inputs."""
