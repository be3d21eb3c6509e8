from pallas_kernels.logits_argmax.api import logits_argmax as logits_argmax
from pallas_kernels.logits_argmax.options import ArgmaxOptions as ArgmaxOptions
