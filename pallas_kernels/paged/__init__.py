"""Code shared by the operations on paged KV pools."""
