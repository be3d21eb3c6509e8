from pallas_kernels.head_squares.api import head_squares as head_squares
