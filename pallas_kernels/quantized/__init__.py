from pallas_kernels.quantized.array import ActivationFormat as ActivationFormat
from pallas_kernels.quantized.array import QuantFormat as QuantFormat
from pallas_kernels.quantized.array import QuantizedArray as QuantizedArray
from pallas_kernels.quantized.array import WeightFormat as WeightFormat
from pallas_kernels.quantized.dequantize import dequantize as dequantize
from pallas_kernels.quantized.matmul import Kernel as Kernel
from pallas_kernels.quantized.matmul import matmul as matmul
