"""The forms of quantised weights that we read, recognised by their tensors alone."""

from convert.forms.compressed_tensors import INT4_GROUP as INT4_GROUP
from convert.forms.form import Form as Form
from convert.forms.form import Parts as Parts
from convert.forms.form import ReadPart as ReadPart
from convert.forms.fp8 import FP8_BLOCK as FP8_BLOCK
from convert.forms.fp8 import FP8_CHANNEL as FP8_CHANNEL
from convert.forms.quark import INT4_AWQ as INT4_AWQ
from convert.forms.quark import INT4_LINEAR as INT4_LINEAR
from convert.forms.quark import MXFP4 as MXFP4
from convert.forms.quark import W4A8 as W4A8
