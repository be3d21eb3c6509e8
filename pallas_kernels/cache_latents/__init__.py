from pallas_kernels.cache_latents.api import cache_latents as cache_latents
