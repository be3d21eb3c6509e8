"""What a pair of models costs on a GPU, said before there is one."""
