"""The fast path on GPUs; imported only where there is one, since its kernels need Triton."""
