"""SGLang's endpoints."""
