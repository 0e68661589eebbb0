"""Does a table still belong to its data, its kernels and, by measuring, to the GPU?"""
