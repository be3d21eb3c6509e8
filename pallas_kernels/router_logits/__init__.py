from pallas_kernels.router_logits.api import router_logits as router_logits
