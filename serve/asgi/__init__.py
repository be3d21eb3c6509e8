"""HTTP below the endpoints: connections, bodies, errors, middleware and shutdown."""
