"""What a compiled kernel can reach on a GPU: arithmetic on facts of its code, nothing measured."""
