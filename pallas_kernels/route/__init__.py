from pallas_kernels.route.api import route as route
from pallas_kernels.route.choice import Held as Held
from pallas_kernels.route.choice import RouterOptions as RouterOptions
from pallas_kernels.route.choice import Routes as Routes
