from pallas_kernels.route.choice import Held as Held
from pallas_kernels.route.choice import RouterOptions as RouterOptions
from pallas_kernels.route.choice import Routes as Routes
from pallas_kernels.route.operation import ROUTE as ROUTE
from pallas_kernels.route.operation import route as route
