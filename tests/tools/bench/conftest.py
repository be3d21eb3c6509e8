from served_fixtures import fake, pair, serve, target_directory

__all__ = ["fake", "pair", "serve", "target_directory"]
