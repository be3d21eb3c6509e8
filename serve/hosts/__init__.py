"""Several processes as one engine: process 0 leads, the others run what it sends them."""

from serve.hosts.follow import follow as follow
from serve.hosts.lead import Leader as Leader
from serve.hosts.lead import lead as lead
from serve.hosts.meet import facts as facts
from serve.hosts.runtime import leave as leave
